"""Its Celery app, as Celery's own documentation has it, and the one line."""

import os

from celery import Celery

from supervisor.app import supervise

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.adoption.desk.settings")

app = supervise(Celery("desk"))
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(name="desk.report")
def report(tenant="all"):
    return tenant
