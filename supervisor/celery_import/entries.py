"""An entry of Celery's or RedBeat's beat -> a job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc

from supervisor.celery_import.whens import every_text, when_of
from supervisor.errors import NotTranslatable
from supervisor.importing.found import Found, LeftOut
from supervisor.importing.names import job_name

#: What an entry may hold; the last four are state, or beat's own.
KNOWN = frozenset(
    {"task", "schedule", "args", "kwargs", "options", "relative", "enabled"}
    | {"name", "app", "last_run_at", "total_run_count"}
)

#: Options of a message that are durations, and the keys for them.
DURATIONS = {
    "expires": "start_deadline",
    "soft_time_limit": "soft_time_limit",
    "time_limit": "time_limit",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """fields: `task`, `schedule`, `args`, `kwargs`, `options`, `relative` and `enabled`."""

    source: str
    name: str
    fields: Mapping[str, Any]


def translate(entry: Entry, app: Celery, now: datetime) -> Found | LeftOut:
    """The job that the app's beat would make of the entry."""
    try:
        return _found(entry, app, now)
    except NotTranslatable as error:
        task, schedule = entry.fields.get("task"), entry.fields.get("schedule")
        return LeftOut(entry.source, str(error), [f"task: {task}", f"schedule: {schedule!r}"])


def _found(entry: Entry, app: Celery, now: datetime) -> Found:
    fields = entry.fields
    if unknown := sorted(str(key) for key in fields if key not in KNOWN):
        raise NotTranslatable(f"unknown to Celery: {', '.join(unknown)}")
    relative = bool(fields.get("relative"))
    when = when_of(fields.get("schedule"), app, now, relative=relative)
    options, lost = _options(fields.get("options") or {})
    values = {
        "task": fields.get("task"),
        "args": list(_json("args", fields.get("args") or ())),
        "kwargs": _json("kwargs", dict(fields.get("kwargs") or {})),
        "paused": not fields.get("enabled", True),
        **when.values,
        **options,
    }
    comments = [entry.source] if job_name(entry.name) != entry.name else []
    return Found(entry.source, entry.name, values, comments, [*when.lost, *lost])


def _json(key: str, value: Any) -> Any:
    """The value as the task gets it from JSON: tuples are lists. Raises NotTranslatable."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_refused))
    except (TypeError, ValueError) as error:
        raise NotTranslatable(f"{key!r}: {error}") from None


def _refused(value: Any) -> Any:
    if isinstance(value, BeatLazyFunc):
        raise NotTranslatable("an argument that beat computes at each run")
    raise TypeError(f"a {type(value).__name__} is nothing that JSON can hold")


def _options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    lost: list[str] = []
    for option, value in options.items():
        try:
            values.update(_option(option, value))
        except NotTranslatable as error:
            lost.append(f"option {option!r} is not translated: {error}")
    return values, lost


def _option(option: str, value: Any) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if option == "queue" and isinstance(value, str):
        yield "queue", value
    elif option in DURATIONS and isinstance(value, int | float) and not isinstance(value, bool):
        yield DURATIONS[option], every_text(timedelta(seconds=value))
    else:
        raise NotTranslatable(f"there is no key for {value!r}")
