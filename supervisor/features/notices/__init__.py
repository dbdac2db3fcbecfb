"""What is told of jobs, and to which destinations."""
