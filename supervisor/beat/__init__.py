"""Celery's beat, by way of RedBeat."""
