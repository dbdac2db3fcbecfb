"""Pings of starts and ends of runs, as healthchecks.io expects them."""
