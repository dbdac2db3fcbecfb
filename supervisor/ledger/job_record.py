"""A job, made of its spec, its hash and its open runs: where it is from, how far it is, and what
became of its ticks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor.job.durations import Histogram
from supervisor.job.run import FAILURES, RunState
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.ledger.limits import BOUNDS
from supervisor.schedule.deadlines import Deadline, next_deadline
from supervisor.schedule.ticks import PausePeriod
from supervisor.times import optional_instant

#: The fields of a job's hash that hold its histograms: the buckets, and the sum in ms.
HISTOGRAM_FIELDS = {
    name: (*(f"h:{name}:{i}" for i in range(1, len(BOUNDS) + 2)), f"h:{name}:sum")
    for name in ("duration", "start_delay")
}


def histogram_from(fields: Mapping[str, str], name: str) -> Histogram:
    """name: of HISTOGRAM_FIELDS."""
    *counts, total_ms = (int(fields.get(field, 0)) for field in HISTOGRAM_FIELDS[name])
    return Histogram(BOUNDS, tuple(counts), total_ms / 1000)


#: The sources of jobs. Programs that put jobs may name others, such as "django".
FILES, AT_RUN_TIME, REDBEAT = "files", "runtime", "redbeat"


#: Where a job stands that is made of an entry which the app's own code has saved, for people.
REDBEATS = "RedBeat's schedule"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job is from."""

    source: str
    version: int
    """Grows with each change of the job."""

    place: str
    """For people, such as "a.yaml:12"."""


#: For a job without an origin in the ledger: only jobs of files were loaded without one.
UNKNOWN_FILE = Origin(FILES, 0, "")


#: For a task that its own code puts under the guard.
IN_CODE = Origin("code", 0, "its own code")


def origin_from(text: str | None) -> Origin:
    if not text:
        return UNKNOWN_FILE
    source, version, place = text.split(" ", 2)
    return Origin(source, int(version), place)


#: The fields of a job's hash that a mark is made of.
MARK_FIELDS = (
    "watermark",
    "paused",
    "paused_at",
    "paused_until",
    "pause_from",
    "pause_to",
    "file_paused",
    "dealt_until",
)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a job's ticks have been dealt with."""

    watermark: datetime | None

    pause: PausePeriod | None
    """The present one, or else the last."""

    file_paused: bool | None
    """`paused` of the schedule file."""

    dealt_until: datetime | None = None
    """The watermark before the server's clock was set back; ticks up to it have outcomes."""


def mark_from(values: Sequence[str | None]) -> Mark:
    """The mark from the values of MARK_FIELDS."""
    watermark, *pause, stated, dealt_until = values
    return Mark(
        optional_instant(watermark),
        pause_from(dict(zip(MARK_FIELDS[1:-2], pause, strict=True))) if any(pause) else None,
        None if stated is None else stated == "1",
        optional_instant(dealt_until),
    )


def pause_from(fields: Mapping[str, str | None]) -> PausePeriod | None:
    is_paused = fields["paused"] == "1"
    start = optional_instant(fields["paused_at"] if is_paused else fields["pause_from"])
    end = optional_instant(fields["paused_until"] if is_paused else fields["pause_to"])
    return PausePeriod(start, end) if start else None


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """How many runs of a job are in which state."""

    running: int = 0
    retrying: int = 0
    queued: int = 0
    waiting: int = 0
    oldest_queued_at: datetime | None = None
    """When the first of the attempts was due that are queued or wait: the nominal time of their
    run, for a backfill when it was requested, and for a further attempt when it was queued."""

    oldest_running_at: datetime | None = None
    """Since when the oldest runs."""

    @property
    def state(self) -> str | None:
        """The state that matters most; None without runs."""
        for state in (RunState.RUNNING, RunState.RETRYING, RunState.QUEUED, RunState.WAITING):
            if getattr(self, state):
                return state.value
        return None

    @property
    def pending(self) -> int:
        """How many wait for a worker, a lock, their time, or a retry."""
        return self.retrying + self.queued + self.waiting

    def __add__(self, other: OpenRuns) -> OpenRuns:
        return OpenRuns(
            self.running + other.running,
            self.retrying + other.retrying,
            self.queued + other.queued,
            self.waiting + other.waiting,
            earlier(self.oldest_queued_at, other.oldest_queued_at),
            earlier(self.oldest_running_at, other.oldest_running_at),
        )


NO_RUNS = OpenRuns()


#: The fields of a job's hash that make JobRecord.unaccounted_ticks.
UNACCOUNTED_FIELDS = ("n:unaccounted", "without_outcome", "overdue")


def counted(line: str) -> OpenRuns:
    running, retrying, queued, waiting, meant_for, since = map(int, line.split(" "))
    return OpenRuns(
        running, retrying, queued, waiting, optional_instant(meant_for), optional_instant(since)
    )


def earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A loaded job and what has become of its ticks so far."""

    spec: JobSpec
    paused: bool

    counters: Mapping[str, int]
    """started, finished:<outcome>, skipped:<reason>, requeued, retried, rescued,
    triggered, restored, missed:<reason>, excluded:<reason>, overlaps, overlap_ms, leases_lost,
    reasserted, duplicates, over_max_duration, under_min_duration and ticks; an absent one is 0."""

    durations: Histogram
    running: int
    waiting: int
    consecutive_skips: int
    last_start_at: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_finish_at: datetime | None
    next_run_at: datetime | None
    last_outcome: str | None
    last_run: str | None
    state: str
    unaccounted_ticks: int
    finding: Mapping[str, Any] | None
    paused_note: str | None = None
    paused_until: datetime | None = None
    origin: Origin = UNKNOWN_FILE

    answered_until: datetime | None = None
    """Ticks up to this are not due, or were followed by a success."""

    @property
    def deadline(self) -> Deadline | None:
        """The deadline of the first tick that is not answered; None while the job is paused."""
        return next_deadline(self.spec, self.answered_until)

    @property
    def success_due_at(self) -> datetime | None:
        """By when a run has to have succeeded, as `due_by` says; None while the job is paused."""
        deadline = self.deadline
        return deadline.at if deadline else None

    @property
    def failures(self) -> int:
        """Runs that failed so far, in whatever way."""
        return sum(self.counters.get(f"finished:{outcome.value}", 0) for outcome in FAILURES)

    @property
    def skipped(self) -> int:
        """Runs skipped so far, for whatever reason."""
        return sum(n for what, n in self.counters.items() if what.startswith("skipped:"))


def job_from(
    spec: JobSpec, fields: Mapping[str, str], open_runs: OpenRuns, origin: str | None = None
) -> JobRecord:
    """origin: as in the ledger."""
    paused = fields.get("paused") == "1"
    idle = "paused" if paused else "idle"
    return JobRecord(
        spec=spec,
        paused=paused,
        counters={key[2:]: int(value) for key, value in fields.items() if key[:2] == "n:"},
        durations=histogram_from(fields, "duration"),
        running=open_runs.running,
        waiting=open_runs.waiting,
        consecutive_skips=int(fields.get("consecutive_skips", 0)),
        last_start_at=optional_instant(fields.get("last_start")),
        last_success_at=optional_instant(fields.get("last_success")),
        last_failure_at=optional_instant(fields.get("last_failure")),
        last_finish_at=optional_instant(fields.get("last_finish")),
        next_run_at=optional_instant(fields.get("next")),
        last_outcome=fields.get("last_outcome"),
        last_run=fields.get("last_run"),
        unaccounted_ticks=sum(abs(int(fields.get(key, 0))) for key in UNACCOUNTED_FIELDS),
        finding=json.loads(fields["finding"]) if "finding" in fields else None,
        paused_note=fields.get("paused_note"),
        paused_until=optional_instant(fields.get("paused_until")),
        answered_until=None if paused else optional_instant(answered_until(fields)),
        state=open_runs.state or idle,
        origin=IN_CODE if isinstance(spec, GuardedTaskSpec) else origin_from(origin),
    )


def answered_until(fields: Mapping[str, str]) -> str | None:
    """The latest of the last success' start, the load and the end of the last pause, in ms."""
    instants = [fields.get(each, "0") for each in ("last_success_start", "loaded", "pause_to")]
    return max(instants, key=int) if any(map(int, instants)) else None
