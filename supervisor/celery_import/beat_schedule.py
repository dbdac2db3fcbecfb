"""The jobs of an app's `beat_schedule`, those of `add_periodic_task` among them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery import Celery

from supervisor.celery_import.entries import KNOWN, Entry, translate
from supervisor.importing.found import Item, LeftOut


def read_beat_schedule(app: Celery, now: datetime) -> list[Item]:
    app.loader.import_default_modules()
    app.finalize()  # what waits for it may add periodic tasks
    schedule: Mapping[str, Any] = app.conf.beat_schedule or {}
    return [_item(str(name), entry, app, now) for name, entry in schedule.items()]


def _item(name: str, entry: Any, app: Celery, now: datetime) -> Item:
    source = f"beat_schedule {name!r}"
    try:
        fields = dict(entry)  # a mapping, or a ScheduleEntry
    except (TypeError, ValueError):
        return LeftOut(source, f"{entry!r} is no entry of a schedule")
    if not isinstance(entry, Mapping):
        fields = {key: value for key, value in fields.items() if key in KNOWN}
    return translate(Entry(source, name, fields), app, now)
