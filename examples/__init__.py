"""Ordinary Celery tasks that `make up` runs: none of them knows that it is supervised."""
