"""The Celery app, and the work: it knows nothing of HTTP, nor of being supervised."""

import time

from celery import Celery

from supervisor.app import supervise

app = supervise(Celery("tasks"), schedules="schedules")


@app.task
def make_report(city):
    time.sleep(40)  # stands for a long query
    return f"the report of {city} is ready"
