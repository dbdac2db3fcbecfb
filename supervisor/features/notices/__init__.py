"""Notices of jobs to people: of which events, to which destinations."""
