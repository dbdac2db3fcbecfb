"""A job as a RedBeat entry: what RedBeat's own tools read, and what beat finds when it is due.

The hash has RedBeat's two fields, `definition` and `meta`, and a third one of ours, `spec`. RedBeat
decodes only its own kinds of schedule, so `definition` carries the nearest of them; the nominal
times come from `spec`. The score in RedBeat's sorted set is the next nominal time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, ParseException, crontab, schedule
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.schedulers import RedBeatSchedulerEntry, ensure_conf
from redbeat.schedules import rrule
from redis.client import Pipeline

from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import REDBEAT, Mark
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.loading import EntryKeys
from supervisor.ledger.reader import chunks
from supervisor.ledger.specs import read_job
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.schedule.rrule import ANCHOR, NUMBERS, WEEKDAYS, Rule, numbers_of, times_a_day
from supervisor.schedule.rrule import parse as parse_rrule
from supervisor.times import in_utc, ms_of

log = get_logger("supervisor.beat")

SPEC_FIELD = "spec"

#: The entry that Celery's beat adds by itself.
CELERYS_OWN = "celery.backend_cleanup"

#: The field of an entry that the app's own code has saved: see adopted.py.
ADOPTED_FIELD = "adopted"

#: In place of a schedule that RedBeat cannot express.
HOURLY = schedule(timedelta(hours=1))


@dataclass(frozen=True, slots=True)
class DueEntry:
    """An entry that is due."""

    key: str
    spec: JobSpec | None
    """None for one that is not ours."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class AdoptedEntry:
    """The entry of RedBeat that a job is made of."""

    name: str
    definition: str


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """An entry that an app's own code has saved."""

    definition: str | None = None
    adopted: str | None = None
    """The definition that a job was made of."""

    is_of_redbeat: bool = False
    """Whether it is no job's, and RedBeat's own code emits it."""


class Entries:
    """The RedBeat entries of one app, in pipelines."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        conf = ensure_conf(app)
        self.app = app
        self._ledger = ledger
        self._client = ledger.client
        self._keys = ledger.keys
        self._prefix: str = conf.key_prefix
        self._schedule: str = conf.schedule_key
        self._static: str = conf.statics_key
        self._names: Mapping[str, str] = {}
        self._jobs: Mapping[str, str] = {}

    def learn_names(self) -> None:
        """Learns which jobs have another name than their entries: those that adopted.py made, and
        those of files that took the place of an entry whose name no job can have."""
        self._names = self._client.hgetall(self._keys.entries)
        self._jobs = {entry: job for job, entry in self._names.items()}

    @property
    def keys(self) -> EntryKeys:
        return EntryKeys(self._prefix, self._schedule)

    def key(self, job: str) -> str:
        return self._prefix + self.name(job)

    def name(self, job: str) -> str:
        """The name of the job's entry."""
        return self._names.get(job, job)

    def job(self, entry: str) -> str | None:
        """The name of the job whose entry this is; None for an entry that belongs to no job."""
        job = self._jobs.get(entry, entry)
        return job if self.name(job) == entry else None

    def write(self, pipe: Pipeline, spec: JobSpec, next_at: datetime | None) -> None:
        """Enters one job and when it is next due; the caller executes the pipeline."""
        pipe.zadd(self._schedule, {self.key(spec.name): score_of(next_at)})
        pipe.hset(self._keys.job(spec.name), "next", ms_of(next_at) if next_at else "")
        pipe.hset(
            self.key(spec.name),
            mapping={
                "definition": definition_text(spec, self.name(spec.name)),
                "meta": json.dumps({"last_run_at": None}),
                SPEC_FIELD: spec.model_dump_json(exclude_defaults=True),
            },
        )

    def reschedule(self, next_at: Mapping[str, datetime | None]) -> None:
        """Writes when jobs are next due, of which there may be thousands."""
        rows = ((job, self.key(job), score_of(at), at) for job, at in next_at.items())
        self._ledger.reschedule(self._schedule, list(rows))

    def remove(self, pipe: Pipeline, job: str) -> None:
        pipe.zrem(self._schedule, self.key(job))
        pipe.delete(self.key(job))

    def take_from_static(self) -> None:
        """Keeps RedBeat from removing jobs that were once entries of `beat_schedule`."""
        if taken := self.jobs_among(self.of_beat_schedule()):
            self._client.srem(self._static, *taken)

    def of_beat_schedule(self) -> set[str]:
        """Names of the entries that RedBeat made from `beat_schedule`."""
        return set(self._client.smembers(self._static))

    def jobs_among(self, names: Iterable[str]) -> set[str]:
        """Which of these names of entries belong to jobs."""
        self.learn_names()
        jobs = {name: job for name in names if (job := self.job(name))}
        texts = self._client.hmget(self._keys.jobs, list(jobs.values())) if jobs else []
        return {name for name, text in zip(jobs, texts, strict=True) if text is not None}

    def is_of_a_ledger(self, key: str) -> bool:
        """Whether it is a job's, of this ledger or of another, and no entry of RedBeat's own."""
        return bool(self._client.hexists(key, SPEC_FIELD))

    def saved_by_app(self, jobs: Set[str], but: Collection[str]) -> dict[str, SavedEntry]:
        """The entries of these jobs, and those of no job, by their names; none of `beat_schedule`.

        but: all jobs that are loaded.
        """
        names = set(self._listed())
        own = set(map(self.name, jobs)) & names
        others = names - set(map(self.name, but)) - self.of_beat_schedule()
        return dict(self._saved(own | others))

    def _saved(self, names: Iterable[str]) -> Iterator[tuple[str, SavedEntry]]:
        """The entries of these names; all fields of one that is not there are empty."""
        for chunk in chunks(sorted(names)):
            with self._client.pipeline(transaction=False) as pipe:
                for name in chunk:
                    pipe.hmget(self._prefix + name, "definition", ADOPTED_FIELD, SPEC_FIELD)
                replies = pipe.execute()
            for name, (definition, adopted, spec) in zip(chunk, replies, strict=True):
                is_of_redbeat = bool(definition) and spec is None
                yield name, SavedEntry(definition, adopted, is_of_redbeat)

    def redbeats_own(self, names: Iterable[str]) -> list[str]:
        """Which of these entries belong to no job: RedBeat's own code emits them."""
        return [name for name, entry in self._saved(names) if entry.is_of_redbeat]

    def names_of(self, specs: Iterable[JobSpec]) -> dict[str, str]:
        """The names of the entries that these jobs of files have or get, by job."""
        return {spec.name: spec.entry or self.name(spec.name) for spec in specs}

    def replaced_by(self, specs: Iterable[JobSpec]) -> dict[str, str]:
        """RedBeat's own entries that jobs replace when they are loaded from files, by job."""
        names = self.names_of(specs)
        own = set(self.redbeats_own(names.values()))
        return {job: name for job, name in names.items() if name in own}

    def _listed(self) -> dict[str, float]:
        """All entries by name, with their scores in RedBeat's schedule."""
        listed = self._client.zrange(self._schedule, 0, -1, withscores=True)
        return {key.removeprefix(self._prefix): score for key, score in listed}

    def unguarded(self) -> dict[str, datetime | None]:
        """Entries that belong to no job, and when RedBeat's own code emits each next."""
        due = self._listed()
        return {
            name: datetime.fromtimestamp(due[name], UTC) if due[name] >= 0 else None
            for name in self.redbeats_own(due)
        }

    def note_adopted(self, definitions: Mapping[str, str]) -> None:
        """Records what jobs that have not changed are made of by now."""
        with self._client.pipeline(transaction=False) as pipe:
            for name, text in definitions.items():
                pipe.hset(self.key(name), ADOPTED_FIELD, text)
            pipe.execute()

    def metas(self, names: Iterable[str]) -> dict[str, str | None]:
        """What RedBeat keeps of the last run of each."""
        listed = list(names)
        with self._client.pipeline(transaction=False) as pipe:
            for name in listed:
                pipe.hget(self.key(name), "meta")
            return dict(zip(listed, pipe.execute(), strict=True))

    def write_meta(self, name: str, meta: str) -> None:
        self._client.hset(self.key(name), "meta", meta)

    def give_back(self, pipe: Pipeline, job: str) -> None:
        """Leaves an entry that was adopted to RedBeat's own code."""
        pipe.hdel(self.key(job), SPEC_FIELD, ADOPTED_FIELD)

    def revive(self, spec: JobSpec, watermark: datetime) -> None:
        """Restores the entry of a job that RedBeat's schedule has lost, unless it is the app's."""
        if self._ledger.loaded([spec.name]).origins[spec.name].source == REDBEAT:
            return
        log.warning("entry restored", job=spec.name)
        with self._ledger.client.pipeline(transaction=True) as pipe:
            self.write(pipe, spec, schedule_of(spec).next_after(watermark))
            pipe.execute()

    def forget(self, key: str) -> None:
        """Drops an entry whose hash is gone."""
        self._client.zrem(self._schedule, key)

    def due(self, now: datetime, limit: int, first: datetime) -> tuple[int, list[str]]:
        """The newest version of a job, and keys of the entries that were due by `now` at that
        moment or later, those due since `first` before all others.
        """
        since = first.timestamp()
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hget(self._keys.beat, "version")
            pipe.zrangebyscore(self._schedule, since, now.timestamp(), 0, limit)
            pipe.zrangebyscore(self._schedule, 0, f"({since}", 0, limit)
            version, prompt, late = pipe.execute()
        return int(version or 0), [*prompt, *late][:limit]

    def make_due(self, jobs: Iterable[str], now: datetime) -> None:
        """Makes these jobs due at once, except those that no longer have an entry."""
        scores = {self.key(job): now.timestamp() for job in jobs}
        if scores:
            self._client.zadd(self._schedule, scores, xx=True)

    def load(self, portions: Sequence[Sequence[str]]) -> Generator[list[DueEntry], None, None]:
        """Yields the entries by portions, without jobs that only another version can read."""
        jobs = (
            [self.job(key.removeprefix(self._prefix)) or "" for key in keys] for keys in portions
        )
        for keys, rows in zip(portions, self._ledger.due_jobs(jobs), strict=True):
            yield [
                DueEntry(key, spec, mark)
                for key, (text, mark) in zip(keys, rows, strict=True)
                if (spec := read_job(text) if text else None) or not text
            ]


# The entries of `beat_schedule`.


def beat_schedule_of(app: Celery) -> dict[str, Any]:
    """By their names as RedBeat stores them: of a member of an Enum that is a text, its value."""
    named: Mapping[Any, Any] = app.conf.beat_schedule or {}
    return {str.__str__(n) if isinstance(n, str) else str(n): entry for n, entry in named.items()}


def for_redbeat(entry: Any) -> Any:
    """Without the key that django-celery-beat has and RedBeat has not."""
    is_dict = isinstance(entry, dict)
    return {key: entry[key] for key in entry if key != "description"} if is_dict else entry


def not_storable(app: Celery) -> dict[str, str]:
    """The entries of `beat_schedule` that RedBeat cannot store, so that no beat emits them; why."""
    problems = {}
    for name, given in beat_schedule_of(app).items():
        try:
            entry = RedBeatSchedulerEntry(**dict(for_redbeat(given), name=name, app=app))
            json.dumps(
                [entry.args, entry.kwargs, entry.options, entry.schedule, entry.task],
                cls=RedBeatJSONEncoder,
            )
        except Exception as error:  # noqa: BLE001 - objects of the app
            problems[name] = f"RedBeat cannot store it, so that no beat emits it: {error}"
    return problems


def score_of(at: datetime | None) -> float:
    """RedBeat ignores scores below zero: an entry that is never due again."""
    return at.timestamp() if at else -1


def definition_text(spec: JobSpec, entry: str = "") -> str:
    return json.dumps(definition(spec, entry), cls=RedBeatJSONEncoder)


def definition(spec: JobSpec, entry: str = "") -> dict[str, Any]:
    """What a stock `RedBeatSchedulerEntry.from_key` reads of a job. entry: its name, if another.

    Not enabled, so that a beat which runs RedBeat's own scheduler does not emit it, unguarded.
    """
    options = {"queue": spec.routed_queue, "priority": spec.priority}
    return {
        "name": entry or spec.name,
        "task": spec.work,
        "args": list(spec.args),
        "kwargs": spec.kwargs,
        "options": {name: value for name, value in options.items() if value is not None},
        "schedule": nearest_schedule(spec),
        "enabled": False,
    }


def nearest_schedule(spec: JobSpec) -> BaseSchedule:
    """A schedule that RedBeat decodes, for display: of several `cron` lines the first, hourly where
    RedBeat has no such schedule."""
    if spec.every is not None:
        return schedule(spec.every)
    if spec.rrule is not None:
        return _nearest_rule(parse_rrule(spec.rrule), spec)
    line = next(iter(spec.cron_lines), "")
    try:
        minute, hour, day_of_month, month, day_of_week = line.split()
        return crontab(minute, hour, day_of_week, day_of_month, month)
    except (ParseException, ValueError):
        return HOURLY


def _nearest_rule(rule: Rule, spec: JobSpec) -> BaseSchedule:
    """RedBeat walks a rule from its beginning: one of each minute would take it minutes."""
    if times_a_day(rule) >= 24:
        return HOURLY
    begin = in_utc(spec.start_at, spec.zone) if spec.start_at else ANCHOR.replace(tzinfo=spec.zone)
    parts = {part: list(numbers_of(rule, part)) for part in NUMBERS if part in rule}
    (interval,) = parts.pop("INTERVAL")
    days = rule["BYDAY"].split(",") if "BYDAY" in rule else ()
    nearest: BaseSchedule = rrule(
        rule["FREQ"],
        dtstart=begin.astimezone(spec.zone),
        wkst=WEEKDAYS.index(rule["WKST"]),
        byweekday=[WEEKDAYS.index(day[-2:]) for day in days] or None,
        interval=interval,
        **{part.lower(): numbers for part, numbers in parts.items()},
    )
    return nearest
