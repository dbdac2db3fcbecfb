"""The Celery app of the examples, and the two lines that supervise it."""

from __future__ import annotations

from celery import Celery

from supervisor.app import supervise

app = Celery(
    "examples",
    include=[
        "examples.sampling",
        "examples.report",
        "examples.checksums",
        "examples.fetch",
        "examples.archive",
        "examples.summary",
        "examples.documents",
    ],
)
supervise(app, schedules="schedules")
