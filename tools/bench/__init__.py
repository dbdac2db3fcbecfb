"""Figures, measured on real processes, ours and others': `make bench`. They are not tests."""
