"""What features know of the schedules that an app has beside its jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from celery import Celery

from supervisor.catalog.entries import SavedEntry
from supervisor.features.adoption import adopted, django_rows

#: Why an entry of RedBeat is no job. The entry: None for one of `beat_schedule`.
REASONS: list[Callable[[Celery, str, SavedEntry | None], str]] = [
    adopted.why_unguarded,
]

#: When rows of a database were changed after schedule files were loaded, if no beat follows them.
ROWS_CHANGED: list[Callable[[Celery, datetime | None], datetime | None]] = [
    django_rows.changed_since,
]
