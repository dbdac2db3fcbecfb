"""Gives an app back to RedBeat's own scheduler: entries as it would emit them, and no key of ours.

1. Runs that have not ended are cancelled, and their messages taken out of the queues, which Redis
   and RabbitMQ allow: a worker would start them without the guard.
2. Each job becomes an entry of RedBeat's own, with the last time that it was emitted, so that none
   is emitted twice or left out. One whose times RedBeat cannot express is reported, and goes.
3. Where supervise() had given RedBeat a prefix of its own, all entries get the app's back.
4. The ledger's keys go last: a release that was cut off can be made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from kombu.exceptions import OperationalError
from redbeat.schedulers import RedBeatSchedulerEntry, ensure_conf

from supervisor.catalog.entries import CELERYS_OWN, Entries, nearest_schedule
from supervisor.errors import NotTranslatable, Unavailable
from supervisor.features.adoption.expressions import (
    CRON_WEEKDAYS,
    DAYS,
    HOURS,
    MINUTES,
    MONTHS,
    compact,
)
from supervisor.features.adoption.queued_messages import take_out, take_out_of_redis
from supervisor.job.secrets import TOKEN, named, resolved, texts_in
from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import REDBEAT, JobRecord
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import open_ids
from supervisor.ledger.reader import chunks
from supervisor.schedule import schedule_of
from supervisor.schedule.cron import parse as parse_cron
from supervisor.schedule.rrule import WEEKDAYS, Rule, numbers_of, rule_pattern, times_a_day
from supervisor.schedule.rrule import parse as parse_rrule
from supervisor.sending.app_settings import REDBEAT_PREFIX, identity_of
from supervisor.sending.queues import AppQueues, channel_of, is_on_redis
from supervisor.store.connection import Client
from supervisor.store.keys import TEMPLATES
from supervisor.times import in_utc

#: What limits or moves the times of a job, and RedBeat has nothing for.
LIMITS = ("end_at", "exclude", "jitter")

BATCH = 1_000

CrontabSets = tuple[set[int], ...]
"""Minutes, hours, weekdays, days of the month and months, in the order of Celery's crontab."""

CRONTAB = (MINUTES, HOURS, CRON_WEEKDAYS, DAYS, MONTHS)


@dataclass(frozen=True, slots=True)
class Release:
    """What becomes of the jobs when they are given back to RedBeat."""

    has_entries: bool
    """Whether RedBeat goes on. Otherwise its static entries go too, which beat has entered."""

    entries: list[RedBeatSchedulerEntry] = field(default_factory=list)
    """Those of the jobs that RedBeat can emit."""

    lost: dict[str, str] = field(default_factory=dict)
    """The names of the other jobs -> why RedBeat cannot emit them."""


def release_of(app: Celery, ledger: Ledger, *, with_entries: bool) -> Release:
    """What the jobs that are loaded come to; nothing is changed. Raises WrongSchema."""
    ledger.check_schema()
    release, adopted = Release(with_entries), adopted_of(ledger)
    specs = {name: spec for name, spec in ledger.scheduled().items() if name not in adopted}
    now, marks = ledger.now(), ledger.marks(list(specs))
    entries = Entries(app, ledger)
    entries.learn_names()
    for record in ledger.records_of(list(specs.values())) if with_entries else ():
        name = record.spec.name
        try:
            entry = entry_of(app, record, marks[name].watermark or now, now)
            entry.name = entries.name(name)
            release.entries.append(entry)
        except NotTranslatable as error:
            release.lost[name] = str(error)
    return release


def give_back(app: Celery, ledger: Ledger, release: Release) -> int | None:
    """How many messages of runs were taken out of queues; None if this broker does not
    allow that.

    No worker and no beat of the app may be running. Raises Unavailable before anything but
    runs has changed.
    """
    client, entries, conf = ledger.client, Entries(app, ledger), ensure_conf(app)
    cancel_runs(ledger)
    taken = take_messages(app, ledger)
    entries.take_from_static()
    entries.learn_names()
    adopted = adopted_of(ledger)
    for name in ledger.scheduled():  # RedBeat keeps the `meta` that it finds
        with client.pipeline(transaction=True) as pipe:
            if name in adopted:
                entries.give_back(pipe, name)
            else:
                entries.remove(pipe, name)
            pipe.execute()
    for entry in release.entries:
        entry.save()
    if not release.has_entries:
        for name in (*client.smembers(conf.statics_key), CELERYS_OWN):
            RedBeatSchedulerEntry(name, app=app).delete()
        client.delete(conf.statics_key)
    lock = conf.lock_key or f"{conf.key_prefix}:lock"
    if ":" in (client.get(lock) or ""):
        client.delete(lock)
    before = app.supervisor["before"]["redbeat_key_prefix"] or REDBEAT_PREFIX  # type: ignore[attr-defined]
    if before != conf.key_prefix:
        move_entries(client, conf.key_prefix, before)
    for keys in chunks(list(keys_of(ledger)), BATCH):  # deleting during a scan may hide some
        client.delete(*keys)
    ledger.functions.forget_versions()
    return taken


def move_entries(client: Client, prefix: str, to: str) -> None:
    """Gives RedBeat's entries another prefix of keys, each with when it is next due."""
    for key, due in client.zrange(f"{prefix}:schedule", 0, -1, withscores=True):
        moved = to + key.removeprefix(prefix)
        fields: dict[Any, Any] = client.hgetall(key)
        with client.pipeline(transaction=True) as pipe:
            if fields and not client.hgetall(moved):
                pipe.hset(moved, mapping={**fields})
                pipe.zadd(f"{to}:schedule", {moved: due})
            pipe.delete(key)
            pipe.zrem(f"{prefix}:schedule", key)
            pipe.execute()
    for name in client.smembers(f"{prefix}:statics"):
        with client.pipeline(transaction=True) as pipe:
            pipe.sadd(f"{to}:statics", name)
            pipe.srem(f"{prefix}:statics", name)
            pipe.execute()


def adopted_of(ledger: Ledger) -> set[str]:
    """Jobs that are entries of the app's own, which RedBeat can emit as they are."""
    return {name for name, origin in ledger.origins().items() if origin.source == REDBEAT}


def cancel_runs(ledger: Ledger) -> None:
    cancelled: set[str] = set()
    while runs := [run_id for run_id in open_ids(ledger) if run_id not in cancelled]:
        for run_id in runs:
            ledger.cancel(run_id, "released")
        cancelled.update(runs)


def take_messages(app: Celery, ledger: Ledger) -> int | None:
    queues, identity = queues_of_runs(app, ledger), identity_of(app, ledger.keys.prefix)
    try:
        with channel_of(app) as channel:
            if is_on_redis(channel):
                return take_out_of_redis(channel, queues, identity)
            if channel.connection.client.transport.driver_type == "amqp":
                return take_out(channel, queues, identity)
            return None
    except (OperationalError, OSError) as error:
        what = "the broker is unavailable, try again when it is back"
        raise Unavailable(f"{what}: {error}") from error


def queues_of_runs(app: Celery, ledger: Ledger) -> list[str]:
    """The queues in which messages may lie, also those of runs that ended long ago."""
    queues = AppQueues(app)
    of_jobs = (queue for spec in ledger.scheduled().values() for queue in queues.of(spec))
    return sorted({*of_jobs, *ledger.leftovers()})


def keys_of(ledger: Ledger) -> Iterator[str]:
    """All keys of the ledger, and none of another one whose prefix begins with this one's."""
    own = re.compile("|".join(map(pattern, TEMPLATES.values())))
    head = f"{ledger.keys.prefix}:"
    names = re.sub(r"([][*?\\])", r"\\\1", head) + "*"
    for key in ledger.client.scan_iter(match=names, count=BATCH):
        if own.fullmatch(key.removeprefix(head)):
            yield key


def pattern(template: str) -> str:
    """Locks have further slots."""
    slots = r"(:[0-9]+)?" if template == TEMPLATES["lock"] else ""
    return re.escape(template).replace("%s", ".+") + slots


def entry_of(
    app: Celery, record: JobRecord, watermark: datetime, now: datetime
) -> RedBeatSchedulerEntry:
    """Raises NotTranslatable."""
    spec = record.spec
    if spec.steps:
        raise NotTranslatable("it has several tasks")
    texts = (text for _, text in texts_in([spec.args, spec.kwargs]))
    if any(named(token) for text in texts for token in TOKEN.finditer(text)):
        raise NotTranslatable(
            "its arguments refer to a secret, which RedBeat would have to contain"
        )
    source = redbeat_schedule(spec, app, now)
    args, kwargs = resolved([list(spec.args), dict(spec.kwargs)], {})
    return RedBeatSchedulerEntry(
        spec.name,
        spec.work,
        source,
        args=args,
        kwargs=kwargs,
        options=dict(options(spec)),
        enabled=not record.paused,
        last_run_at=last_run(spec, watermark),
        app=app,
    )


def options(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    if spec.routed_queue:
        yield "queue", spec.routed_queue
    if spec.priority is not None:
        yield "priority", spec.priority
    if spec.start_deadline != JobSpec.model_fields["start_deadline"].default:
        yield "expires", spec.start_deadline.total_seconds()
    for limit in ("soft_time_limit", "time_limit"):
        if (value := getattr(spec, limit)) is not None:
            yield limit, value.total_seconds()


def last_run(spec: JobSpec, watermark: datetime) -> datetime:
    """The last run for RedBeat, which counts from there, so that an interval goes on in step."""
    if spec.every is None:
        return watermark
    following = schedule_of(spec).next_after(watermark)
    return following - spec.every if following else watermark


def redbeat_schedule(spec: JobSpec, app: Celery, now: datetime) -> BaseSchedule:
    """A schedule of Celery with the same times. Raises NotTranslatable."""
    limits = [key for key in LIMITS if getattr(spec, key)]
    if spec.start_at and not spec.rrule and in_utc(spec.start_at, spec.zone) > now:
        limits.append("start_at")
    if limits:
        raise NotTranslatable(f"RedBeat has nothing for {' and '.join(map(repr, limits))}")
    if spec.every is not None:
        return schedule(spec.every, app=app)
    if spec.at:
        raise NotTranslatable("RedBeat has no list of times")
    sets = sets_of_rule(spec, now) if spec.rrule else sets_of_cron(spec)
    if sets and spec.timezone == str(app.timezone):
        return crontab(*map(compact, sets, CRONTAB), app=app)
    is_fixed = spec.timezone == "UTC" or spec.timezone.startswith("Etc/")
    if is_fixed and spec.rrule and has_rule(parse_rrule(spec.rrule)):
        nearest = nearest_schedule(spec)
        nearest.app = app
        return nearest
    raise NotTranslatable(
        f"RedBeat has nothing for {spec.schedule} by the clock of {spec.timezone}"
    )


def has_rule(rule: Rule) -> bool:
    """Whether RedBeat has the rule: it forgets numbers of weekdays, and walks all its times."""
    has_numbered_days = any(character.isdigit() for character in rule.get("BYDAY", ""))
    return times_a_day(rule) < 24 and not has_numbered_days


def sets_of_cron(spec: JobSpec) -> CrontabSets | None:
    """None if Celery's crontab cannot express it."""
    if len(spec.cron_lines) != 1:
        return None
    cron = parse_cron(spec.cron_lines[0])
    days = {day for day in cron.days if day > 0}
    weekdays = {day % 7 for day in cron.weekdays if isinstance(day, int)}
    if len(days) < len(cron.days) or not all(isinstance(day, int) for day in cron.weekdays):
        return None
    if not cron.day_and:  # either field is enough: a day that one of them has, where it has all
        if days != {*DAYS} and weekdays != {*CRON_WEEKDAYS}:
            return None
        days, weekdays = {*DAYS}, {*CRON_WEEKDAYS}
    return {*cron.minutes}, {*cron.hours}, weekdays, days, {*cron.months}


def sets_of_rule(spec: JobSpec, now: datetime) -> CrontabSets | None:
    """None if its days are not all those that match in month, number and weekday."""
    start = in_utc(spec.start_at, spec.zone) if spec.start_at else None
    pattern = rule_pattern(parse_rrule(spec.rrule or ""), start, spec.zone)
    rule, seconds = parse_rrule(pattern.days), pattern.times
    counts = re.search("BYSETPOS|-|[0-9][A-Z]", pattern.days) or rule["INTERVAL"] != "1"
    if counts or any(second % 60 for second in seconds) or (start and start > now):
        return None
    weekdays = rule.get("BYDAY", ",".join(WEEKDAYS)).split(",")
    return (
        {second // 60 % 60 for second in seconds},
        {second // 3600 for second in seconds},
        {(WEEKDAYS.index(day) + 1) % 7 for day in weekdays},
        {*(numbers_of(rule, "BYMONTHDAY") or DAYS)},
        {*(numbers_of(rule, "BYMONTH") or MONTHS)},
    )
