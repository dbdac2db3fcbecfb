"""The Celery app, as Celery's own pages have it for Django, and one line more."""

import os

from celery import Celery

from supervisor.app import supervise

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
supervise(app, schedules="schedules")
