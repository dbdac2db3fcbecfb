"""Chaos: everything is killed at random while jobs of every policy run; a witness keeps the score.

Run by ``make chaos MINUTES=3``, not by the tests. Linux only.
"""
