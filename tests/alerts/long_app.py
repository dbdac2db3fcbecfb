"""The app of the long run: tasks that take a random time."""

from __future__ import annotations

import os
import random
import time

from celery import Celery

from supervisor.app import supervise

app = Celery("healthy", broker=os.environ["HEALTHY_BROKER"])
supervise(app, schedules="schedules")


@app.task
def work(shortest: float, longest: float) -> None:
    time.sleep(random.uniform(shortest, longest))


@app.task
def jitter(longest: float) -> None:
    """Now and then ten times as long as it mostly is."""
    time.sleep(min(longest, random.lognormvariate(0, 1.2)))
