"""Nominal times on their way to runs, and the proof that none got lost."""
