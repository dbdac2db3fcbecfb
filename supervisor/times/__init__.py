"""Instants, durations and clocks."""
