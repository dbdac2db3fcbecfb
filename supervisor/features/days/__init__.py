"""A year of a job's days on its page: how its runs ended."""
