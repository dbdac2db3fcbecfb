"""A schedule file written from what a team has; what is read from Celery is in celery_import."""
