"""The table of jobs, as it came to be."""
