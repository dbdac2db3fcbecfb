"""Processes on one machine: `supervisor up`, and the server that comes with it."""
