"""Telling others of runs."""
