"""Jobs made from Celery's `beat_schedule` and from RedBeat's entries.

`translate` makes a job of an entry of either; `when_of` says when it runs, in the keys of a job.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedule, solar
from redbeat.schedulers import RedBeatSchedulerEntry, ensure_conf, get_redis
from redbeat.schedules import rrule

from supervisor.catalog.entries import CELERYS_OWN, SPEC_FIELD, beat_schedule_of
from supervisor.catalog.job_checks import CANVAS, CANVAS_HINT
from supervisor.errors import NotTranslatable
from supervisor.features.adoption.expressions import expression, rule_for
from supervisor.features.adoption.imported import ImportedJob, Item, LeftOut
from supervisor.features.adoption.redbeat_rules import when_of_rule, zone_of
from supervisor.job.fields import PRIORITIES
from supervisor.store.connection import Client
from supervisor.times import LONGEST_SECONDS, render_duration

# A Celery schedule -> the keys of a job that say when it runs.


#: Relative intervals of these lengths are times of the clock.
ON_THE_CLOCK = {
    timedelta(minutes=1): "* * * * *",
    timedelta(hours=1): "0 * * * *",
    timedelta(days=1): "0 0 * * *",
}


@dataclass(frozen=True, slots=True)
class Translated:
    """A schedule as keys of a job."""

    values: dict[str, Any]
    lost: list[str] = field(default_factory=list)
    """What these keys do not say of it."""


def when_of(source: Any, app: Celery, now: datetime, *, relative: bool = False) -> Translated:
    """relative: of an entry that gives its interval as a number or timedelta.

    Raises NotTranslatable.
    """
    if isinstance(source, int | float) and not isinstance(source, bool):
        source = _seconds(source)
    if isinstance(source, timedelta):
        source = schedule(source, relative)
    if isinstance(source, rrule):
        return Translated(when_of_rule(source, now))
    if type(source) is crontab:
        if vars(source).get("nowfun"):
            raise NotTranslatable("it has a clock of its own (nowfun)")
        return Translated(clock_times(source, zone_of(app)))
    if type(source) is schedule:
        return _interval(source, app)
    if isinstance(source, solar):
        raise NotTranslatable("there is no key for the times of the sun")
    if isinstance(source, BaseSchedule):
        raise NotTranslatable(f"a schedule class of its own, {type(source).__qualname__}")
    raise NotTranslatable(f"it has no schedule but {source!r}")


def _seconds(number: float) -> timedelta:
    try:
        return timedelta(seconds=number)
    except (OverflowError, ValueError):
        raise NotTranslatable(f"{number} is no number of seconds") from None


def clock_times(source: Any, zone: str) -> dict[str, Any]:
    """`cron`, or `rrule` where a day has to match two fields in a way that cron has not."""
    fields = {
        "minutes": source.minute,
        "hours": source.hour,
        "days": source.day_of_month,
        "months": source.month_of_year,
        "weekdays": source.day_of_week,
    }
    try:
        return {"cron": expression(**fields), "timezone": zone}
    except NotTranslatable:
        return {"rrule": rule_for(**fields), "timezone": zone}


def _interval(source: Any, app: Celery) -> Translated:
    every = source.run_every
    if not isinstance(every, timedelta):
        raise NotTranslatable("an interval that is not given")
    if not source.relative:
        return Translated({"every": every_text(every)})
    if every in ON_THE_CLOCK:
        return Translated({"cron": ON_THE_CLOCK[every], "timezone": zone_of(app)})
    if every < timedelta(minutes=1):  # rounded to whole seconds, as the grid is
        return Translated({"every": every_text(every)})
    lost = "'relative' rounds its times to the clock, the grid of 'every' may not"
    return Translated({"every": every_text(every)}, [lost])


def every_text(every: timedelta) -> str:
    """Raises NotTranslatable for an interval that `every` cannot hold."""
    if every < timedelta(seconds=1):
        raise NotTranslatable("an interval under a second")
    if every % timedelta(milliseconds=1) or every.total_seconds() > LONGEST_SECONDS:
        raise NotTranslatable(f"an interval of {every.total_seconds()} seconds")
    return render_duration(every)


#: Options of a message without which other tasks would not run.
CALLBACKS = ("link", "link_error", "chord")

#: What an entry may have; the last four are its state, or beat's own.
ENTRY_FIELDS = frozenset(
    {"task", "schedule", "args", "kwargs", "options", "relative", "enabled", "description"}
    | {"name", "app", "last_run_at", "total_run_count"}
)

#: Options of a message that are durations, and the keys for them.
DURATIONS = {
    "expires": "start_deadline",
    "soft_time_limit": "soft_time_limit",
    "time_limit": "time_limit",
}


def translate(
    source: str, name: str, fields: Mapping[str, Any], app: Celery, now: datetime
) -> ImportedJob | LeftOut:
    """The job that does what the app's beat does with the entry. fields: of ENTRY_FIELDS."""
    try:
        if unknown := sorted(str(key) for key in fields if key not in ENTRY_FIELDS):
            raise NotTranslatable(f"unknown to Celery: {', '.join(unknown)}")
        relative = bool(fields.get("relative"))
        when = when_of(fields.get("schedule"), app, now, relative=relative)
        return job_of(source, name, fields, when)
    except Exception as error:  # noqa: BLE001 - objects of the app; an entry costs itself only
        why = str(error) if isinstance(error, NotTranslatable) else f"it cannot be read: {error!r}"
        task, schedule = fields.get("task"), fields.get("schedule")
        return LeftOut(source, why, [f"task: {task}", f"schedule: {schedule!r}"])


def job_of(source: str, name: str, fields: Mapping[str, Any], when: Translated) -> ImportedJob:
    """The job of an entry that runs at these times. Raises NotTranslatable."""
    task = _json("task", fields.get("task"))
    if task in CANVAS:
        raise NotTranslatable(f"{task} is no task of a worker: {CANVAS_HINT}")
    options, lost = _options(fields.get("options") or {})
    values = {
        "task": task,
        "description": _json("description", fields.get("description") or ""),
        "args": list(_json("args", fields.get("args") or ())),
        "kwargs": _json("kwargs", dict(fields.get("kwargs") or {})),
        "paused": not fields.get("enabled", True),
        **when.values,
        **options,
    }
    return ImportedJob(source, name, values, [*when.lost, *lost])


def _json(key: str, value: Any) -> Any:
    """The value as the task gets it from JSON: tuples are lists. Raises NotTranslatable."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_refused))
    except (TypeError, ValueError) as error:
        raise NotTranslatable(f"{key!r}: {error}") from None


def _refused(value: Any) -> Any:
    if isinstance(value, BeatLazyFunc):
        raise NotTranslatable("an argument that beat computes for each run")
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    lost: list[str] = []
    for option, value in options.items():
        if option in CALLBACKS and value:
            raise NotTranslatable(f"option {option!r}: a job has 'steps' for other tasks")
        try:
            values.update(_option(option, value))
        except NotTranslatable as error:
            lost.append(f"option {option!r} is not translated: {error}")
    return values, lost


def _option(option: str, value: Any) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if option == "queue" and isinstance(value, str):
        yield "queue", str.__str__(value)
    elif option == "priority" and value in PRIORITIES:
        yield "priority", int(value)
    elif option in DURATIONS and isinstance(value, int | float) and not isinstance(value, bool):
        yield DURATIONS[option], every_text(timedelta(seconds=value))
    else:
        raise NotTranslatable(f"there is no key for {value!r}")


# The entries of an app's `beat_schedule`, with those of `add_periodic_task`.


def read_beat_schedule(app: Celery, now: datetime) -> list[Item]:
    app.loader.import_default_modules()
    app.finalize()  # its signal may add periodic tasks
    return [item_of(name, entry, app, now) for name, entry in beat_schedule_of(app).items()]


def item_of(name: str, entry: Any, app: Celery, now: datetime) -> Item:
    """The job that is made of an entry of `beat_schedule`."""
    source = f"beat_schedule {name!r}"
    try:
        fields = dict(entry)  # a mapping, or a ScheduleEntry
    except (TypeError, ValueError):
        return LeftOut(source, f"{entry!r} is no entry of a schedule")
    if not isinstance(entry, Mapping):
        fields = {key: value for key, value in fields.items() if key in ENTRY_FIELDS}
    return translate(source, name, fields, app, now)


# The entries that RedBeat keeps in Redis.
#
# All keys of its sorted set are read, also those that are never due again. Entries that came from
# schedule files are left out.


#: Entries read in one round trip.
BATCH = 500


def read_redbeat(app: Celery, now: datetime, prefix: str | None = None) -> list[Item]:
    """prefix: of RedBeat's keys, in place of the app's present one."""
    with warnings.catch_warnings():
        # Without redbeat_redis_url RedBeat uses the broker, with a warning.
        warnings.simplefilter("ignore", DeprecationWarning)
        prefix = prefix or ensure_conf(app).key_prefix
    client = get_redis(app)
    # Beat enters and removes these, as the app's code says.
    static = {CELERYS_OWN, *client.smembers(f"{prefix}:statics")}
    return [
        _redbeat_item(name, definition, app, now)
        for key, definition, spec in sorted(_entries(client, f"{prefix}:schedule"))
        if spec is None and (name := key.removeprefix(prefix)) not in static
    ]


def _entries(client: Client, schedule_key: str) -> Iterator[tuple[str, str | None, str | None]]:
    """Key, definition, and the field that only entries from schedule files have."""
    keys = client.zrange(schedule_key, 0, -1)
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        with client.pipeline(transaction=False) as pipe:
            for key in batch:
                pipe.hmget(key, "definition", SPEC_FIELD)
            for key, (definition, spec) in zip(batch, pipe.execute(), strict=True):
                yield key, definition, spec


def _redbeat_item(name: str, definition: str | None, app: Celery, now: datetime) -> Item:
    source = f"redbeat {name!r}"
    if not definition:
        return LeftOut(source, "Redis has its key, but no definition")
    try:
        fields = dict(RedBeatSchedulerEntry.decode_definition(definition))
    except Exception as error:  # noqa: BLE001 - its decoder builds objects of what it reads
        return LeftOut(source, f"RedBeat cannot decode it: {error}", [definition])
    return translate(source, name, fields, app, now)
