"""Runs that are triggered when a transaction of a database commits."""
