"""Periodic tasks of other schedulers as jobs, and back."""
