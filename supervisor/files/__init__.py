"""From schedule files to jobs, with all problems at once."""
