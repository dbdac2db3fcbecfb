"""What one scrape reads of the ledger, before any of it is written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import ge

from supervisor.features.outbound.store import LedgerOutbox, OutboundFigures
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues, Queue, Queues, queues
from supervisor.ledger.records import (
    HISTOGRAM_FIELDS,
    NO_RUNS,
    UNACCOUNTED_FIELDS,
    BeatRecord,
    Histogram,
    OpenRuns,
    histogram_of,
)
from supervisor.ledger.replies import instant
from supervisor.schedule import next_due_at, schedule_of
from supervisor.ticks.expectations import (
    SLACK,
    interval_of,
    late_after,
    next_ticks,
    running_limit,
    usual_duration,
    work_until_success,
)
from supervisor.times import plus

DURATIONS, START_DELAYS = HISTOGRAM_FIELDS["duration"], HISTOGRAM_FIELDS["start_delay"]

#: Fields of a job's hash beside its counters. Instants in ms since 1970; 0 for none.
STATUS_FIELDS = (
    *("created", "loaded", "paused", "pause_to", "last_success", "last_success_start"),
    *("last_failure", "next", "consecutive_skips", *UNACCOUNTED_FIELDS),
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as one scrape finds it, and what can be expected of it.

    numbers: by their field of the job's hash.
    """

    spec: JobSpec
    numbers: Mapping[str, int]
    open_runs: OpenRuns
    durations: Histogram
    start_delays: Histogram
    interval: timedelta | None
    late_after: timedelta
    running_limit: timedelta | None
    success_by: datetime | None
    success_due_at: datetime | None

    @property
    def unaccounted_ticks(self) -> int:
        return sum(abs(self.numbers[field]) for field in UNACCOUNTED_FIELDS)


def job_of(
    spec: JobSpec, numbers: Mapping[str, int], open_runs: OpenRuns, interval: timedelta | None
) -> Job:
    """`interval`: the shortest of its next ticks."""
    durations = histogram_of([numbers[field] for field in DURATIONS])
    usual = usual_duration(spec, durations, interval)
    late = late_after(spec, interval, usual)
    due = due_tick(spec, numbers)
    return Job(
        spec=spec,
        numbers=numbers,
        open_runs=open_runs,
        durations=durations,
        start_delays=histogram_of([numbers[field] for field in START_DELAYS]),
        interval=interval,
        late_after=late,
        running_limit=running_limit(spec, durations),
        success_by=due and plus(due, late + work_until_success(spec, usual) + SLACK),
        success_due_at=success_due_at(spec, numbers),
    )


def due_tick(spec: JobSpec, numbers: Mapping[str, int]) -> datetime | None:
    """The first tick that should end in a success; None while the job is paused."""
    after = max(numbers["last_success"], numbers["loaded"], numbers["pause_to"])
    if numbers["paused"] or not after or not spec.has_schedule:
        return None
    return schedule_of(spec).next_after(instant(after))


def success_due_at(spec: JobSpec, numbers: Mapping[str, int]) -> datetime | None:
    """As JobRecord.success_due_at."""
    answered_until = max(numbers["last_success_start"], numbers["loaded"], numbers["pause_to"])
    if numbers["paused"] or not answered_until or spec.due_by is None:
        return None
    return next_due_at(spec, instant(answered_until))


class Intervals:
    """The shortest interval of each job's next ticks, computed again when these have passed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[JobSpec, timedelta | None, datetime | None]] = {}

    def of(self, spec: JobSpec, now: datetime) -> timedelta | None:
        of_spec, interval, last = self._known.get(spec.name, (None, None, None))
        if of_spec is not spec or (last is not None and last <= now):
            ticks = next_ticks(spec, now)
            interval = interval_of(ticks)
            self._known[spec.name] = spec, interval, ticks[-1] if ticks else None
        return interval

    def keep(self, jobs: Mapping[str, object]) -> None:
        """Forgets all other jobs."""
        if len(self._known) > len(jobs):
            self._known = {job: known for job, known in self._known.items() if job in jobs}


class Served:
    """The counters that were served last, so that none goes down.

    Redis may lose its last second of writes. Prometheus takes a counter that fell from 100 to 99
    for one that was reset and counted to 99. So the last value is served until the ledger has
    counted past it. A job whose `created` is another than before is counted from 0 again.
    """

    def __init__(self) -> None:
        self._served: dict[str, tuple[int, Sequence[int]]] = {}

    def held(self, job: str, created: int, counts: Sequence[int]) -> Sequence[int]:
        """The counts, none of them lower than before."""
        since, before = self._served.get(job, (created, counts))
        if since == created and not all(map(ge, counts, before)):
            counts = tuple(map(max, counts, before))
        self._served[job] = created, counts
        return counts

    def keep(self, jobs: Mapping[str, object]) -> None:
        """Forgets all other jobs."""
        if len(self._served) > len(jobs):
            self._served = {job: served for job, served in self._served.items() if job in jobs}


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that one scrape reads. `started`: on the monotonic clock."""

    started: float
    jobs: Sequence[Job]
    beat: BeatRecord
    roll: Roll
    queues: Sequence[Queue]
    outbound: OutboundFigures

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Scraper:
    """Reads a ledger. counters: fields of a job's hash. Not thread-safe.

    broker: where the lengths of queues come from; without it, as the workers report it.
    """

    def __init__(self, ledger: Ledger, broker: Queues | None, counters: Iterable[str]) -> None:
        self._ledger = ledger
        self._broker = broker
        self._counted = (*DURATIONS, *START_DELAYS, *counters)
        self._intervals = Intervals()
        self._served = Served()

    def scrape(self) -> Scrape:
        """Raises RedisError."""
        started, ledger = time.monotonic(), self._ledger
        specs, now = ledger.specs(), ledger.now()
        roll, open_runs = ledger.presences.roll(), ledger.open_runs_of([*specs])
        figures = ledger.figures.of([*specs], (*self._counted, *STATUS_FIELDS))
        jobs = [
            self._job(spec, integers, open_runs.get(spec.name, NO_RUNS), now)
            for spec, integers in zip(specs.values(), figures, strict=True)
        ]
        self._intervals.keep(specs)
        self._served.keep(specs)
        beat, outbound = LedgerOutbox(ledger).figures()
        broker = self._broker or LedgerQueues(ledger.client, roll)
        found = queues(specs.values(), roll, broker, ledger.drains.since())
        return Scrape(started, jobs, beat, roll, found, outbound)

    def _job(
        self, spec: JobSpec, integers: Sequence[int], open_runs: OpenRuns, now: datetime
    ) -> Job:
        counts, status = integers[: len(self._counted)], integers[len(self._counted) :]
        numbers = dict(zip(STATUS_FIELDS, status, strict=True))
        held = self._served.held(spec.name, numbers["created"], counts)
        numbers |= zip(self._counted, held, strict=True)
        return job_of(spec, numbers, open_runs, self._intervals.of(spec, now))
