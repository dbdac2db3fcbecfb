"""The Celery apps that the tests of `apply` name: one that is supervised and one that is not."""

from __future__ import annotations

from celery import Celery

from supervisor.app import supervise

app = supervise(Celery("planned", broker="redis://"), schedules="schedules")
plain = Celery("plain", broker="redis://")


@app.task(name="planned.poll")
def poll(*args: object, **kwargs: object) -> None: ...


@app.task(name="planned.report")
def report(day: int) -> None: ...
