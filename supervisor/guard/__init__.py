"""A run at work under its lease, from delivery to end, without Celery."""
