"""Celery's worker under the guard."""
