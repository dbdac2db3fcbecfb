"""One attempt of a run under its lease, from delivery to end, without Celery."""
