"""The Celery app of the examples, and the two lines that supervise it."""

from __future__ import annotations

from celery import Celery

from supervisor.app import supervise

app = Celery(
    "examples",
    include=[
        "supervisor.examples.sampling",
        "supervisor.examples.report",
        "supervisor.examples.checksums",
        "supervisor.examples.fetch",
        "supervisor.examples.archive",
        "supervisor.examples.summary",
        "supervisor.examples.documents",
    ],
)
supervise(app, schedules="schedules")
