"""Figures, measured on real processes: ``make bench`` prints them. They are not tests."""
