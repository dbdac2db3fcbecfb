"""An app whose own tests call tasks at once, or with the worker of celery.contrib.pytest."""

import os

import facts
from celery import Celery

app = Celery("tested")
app.conf.update(
    broker_url=os.environ.get("TESTED_BROKER", "memory://"),
    result_backend="cache+memory://",
    task_always_eager="EAGER" in os.environ,
    task_eager_propagates=True,
)
facts.supervised(app)


@app.task(bind=True)
def add(self, a, b):
    return a + b
