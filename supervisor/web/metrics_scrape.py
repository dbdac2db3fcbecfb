"""What one scrape reads: fifty calls for a thousand jobs, sent without waiting for each reply."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import ge
from typing import NamedTuple
from zlib import crc32

from redis.exceptions import RedisError

from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.ledger.counts import UNKNOWN
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.outbound import OutboundFigures
from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues, Queue, Queues, queues
from supervisor.ledger.reads import read_spec
from supervisor.ledger.records import (
    HISTOGRAM_FIELDS,
    NO_RUNS,
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

Counts = tuple[int, ...]


class CounterResets:
    """Keeps counters from going down when Redis loses its last second of writes.

    Prometheus takes a counter that fell from 100 to 99 for one that was reset and counted to 99. So
    the value served last is served until the ledger has counted past it. A job whose `created` is
    another than before is counted from 0 again. The values are in this process's memory only.
    """

    def __init__(self) -> None:
        self._served: dict[str, tuple[int, Counts]] = {}

    def held(self, job: str, created: int, counts: Counts) -> Counts:
        """The counts, none of them lower than before."""
        since, before = self._served.get(job, (created, counts))
        if since == created and not all(map(ge, counts, before)):
            counts = tuple(map(max, counts, before))
        self._served[job] = created, counts
        return counts

    def forget_removed(self, jobs: Mapping[str, object]) -> None:
        if len(self._served) > len(jobs):
            self._served = {job: served for job, served in self._served.items() if job in jobs}


class Status(NamedTuple):
    """Integers of a job's hash, beside its counters. Instants in ms since 1970; 0 for none.

    created: since when the job's counters count. loaded: since when it has its present schedule.
    pause_to: the end of its last pause.
    """

    created: int
    loaded: int
    paused: int
    pause_to: int
    last_start: int
    last_success: int
    last_success_start: int
    last_failure: int
    next: int
    consecutive_skips: int
    miscounted: int
    unsettled: int
    overdue: int

    @property
    def unaccounted_ticks(self) -> int:
        return abs(self.miscounted) + abs(self.unsettled) + abs(self.overdue)

    @property
    def success_due_after(self) -> int:
        """The instant after which the first tick should end in a success."""
        return max(self.last_success, self.loaded, 0 if self.paused else self.pause_to)

    @property
    def answered_until(self) -> int:
        """As records.answered_until()."""
        return max(self.last_success_start, self.loaded, self.pause_to)


#: The fields of a job's hash, in this order.
FIELDS = (
    *("created", "loaded", "paused", "pause_to", "last_start", "last_success"),
    *("last_success_start", "last_failure", "next", "consecutive_skips"),
    *("n:unaccounted", "unsettled", "overdue"),
)


def in_seconds(instant: int) -> float | None:
    """Seconds from milliseconds; None for 0."""
    return instant / 1000 if instant else None


#: Removed jobs that Expectations may remember beyond as many as are loaded.
MOST_REMOVED = 1_000


@dataclass(frozen=True, slots=True)
class Expected:
    interval: timedelta | None
    late_after: timedelta
    running_limit: timedelta | None
    success_by: datetime | None
    success_due_at: datetime | None


@dataclass(slots=True)
class Memory:
    """The last of a job's next ticks when these were computed, and `due`, the first tick `after` an
    instant.

    success_due_at: the deadline of the first tick after `answered_until`.
    """

    spec: JobSpec
    last_tick: datetime | None
    interval: timedelta | None
    after: int = 0
    due: datetime | None = None
    answered_until: int = 0
    success_due_at: datetime | None = None


class Expectations:
    """What to expect of each job, kept from scrape to scrape while nothing changes."""

    def __init__(self) -> None:
        self._memory: dict[str, Memory] = {}

    def of(self, spec: JobSpec, durations: Histogram, status: Status, now: datetime) -> Expected:
        memory = self._remembered(spec, now)
        usual = usual_duration(spec, durations, memory.interval)
        late = late_after(spec, memory.interval, usual)
        due = None if status.paused else due_tick(memory, status.success_due_after)
        return Expected(
            interval=memory.interval,
            late_after=late,
            running_limit=running_limit(spec, durations),
            success_by=due and plus(due, late + work_until_success(spec, usual) + SLACK),
            success_due_at=None if status.paused else named_deadline(memory, status.answered_until),
        )

    def forget_removed(self, jobs: int) -> None:
        """Forgets all when too many of them are of removed jobs."""
        if len(self._memory) > 2 * jobs + MOST_REMOVED:
            self._memory.clear()

    def _remembered(self, spec: JobSpec, now: datetime) -> Memory:
        """Computed again when the job was edited, or the last of its ticks has passed."""
        known = self._memory.get(spec.name)
        is_over = known is not None and known.last_tick is not None and known.last_tick <= now
        if known is None or known.spec is not spec or is_over:
            ticks = next_ticks(spec, now)
            last = ticks[-1] if ticks else None
            known = self._memory[spec.name] = Memory(spec, last, interval_of(ticks))
        return known


def due_tick(memory: Memory, after: int) -> datetime | None:
    """The job's first tick after this instant in ms."""
    if not after or not memory.spec.has_schedule:
        return None
    if memory.after != after:
        memory.after, memory.due = after, schedule_of(memory.spec).next_after(instant(after))
    return memory.due


def named_deadline(memory: Memory, answered_until: int) -> datetime | None:
    """The deadline of the first tick after this instant in ms, for a job with `due_by`."""
    if memory.spec.due_by is not None and answered_until != memory.answered_until:
        memory.answered_until = answered_until
        memory.success_due_at = next_due_at(memory.spec, instant(answered_until))
    return memory.success_due_at


DURATIONS, START_DELAYS = HISTOGRAM_FIELDS["duration"], HISTOGRAM_FIELDS["start_delay"]

#: Places in the line of integers that is read of a job.
END_OF_DURATIONS = len(DURATIONS)
END_OF_HISTOGRAMS = END_OF_DURATIONS + len(START_DELAYS)
FIELDS_OF_STATUS = len(FIELDS)


@dataclass(frozen=True, slots=True)
class Job:
    """counted: the integers of both histograms, and the counters in the order in which they were
    asked for. digest: of the hash in which they were."""

    spec: JobSpec
    counted: Counts
    status: Status
    open_runs: OpenRuns
    expected: Expected
    digest: str = UNKNOWN

    @property
    def counters(self) -> Counts:
        return self.counted[END_OF_HISTOGRAMS:]

    @property
    def durations(self) -> Histogram:
        return histogram_of(self.counted[:END_OF_DURATIONS])

    @property
    def start_delays(self) -> Histogram:
        return histogram_of(self.counted[END_OF_DURATIONS:END_OF_HISTOGRAMS])


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several scrapes that together have all jobs, each job in one of them."""

    number: int = 0
    of: int = 1

    def has(self, job: str) -> bool:
        return self.of == 1 or crc32(job.encode()) % self.of == self.number

    @property
    def is_first(self) -> bool:
        """Whether this scrape also has the series that belong to no job."""
        return self.number == 0


EVERYTHING = Shard()


@dataclass(frozen=True, slots=True)
class Scrape:
    """`started`: on the monotonic clock. at: by the ledger's clock.

    loaded: how many jobs there are in all shards. queues: of the first shard.
    """

    started: float
    at: datetime
    loaded: int
    jobs: Sequence[Job]
    beat: BeatRecord
    roll: Roll
    queues: Sequence[Queue]
    outbound: OutboundFigures

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Specs:
    """All jobs. Only those that were edited since are read again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._version = -1
        self._scheduled: dict[str, JobSpec] = {}
        self._guarded: dict[str, JobSpec] = {}
        self._guarded_texts: Mapping[str, str] = {}
        self._all: dict[str, JobSpec] = {}

    def now(self) -> Mapping[str, JobSpec]:
        """The jobs by name, sorted."""
        version, texts = self._ledger.newest_version(), self._ledger.guarded_texts()
        is_same = version == self._version > 0
        if not is_same:
            self._read(version)
        if not is_same or texts != self._guarded_texts:
            self._read_guarded(texts)
            self._all = dict(sorted({**self._guarded, **self._scheduled}.items()))
        return self._all

    def _read_guarded(self, texts: Mapping[str, str]) -> None:
        before, known = self._guarded_texts, self._guarded
        found = {
            name: known.get(name) if text == before.get(name) else read_spec(GuardedTaskSpec, text)
            for name, text in texts.items()
        }
        self._guarded = {name: spec for name, spec in found.items() if spec is not None}
        self._guarded_texts = texts

    def _read(self, version: int) -> None:
        # After a loss of data, versions may be lower than before.
        edited = self._ledger.edited_since(self._version) if version > self._version > 0 else None
        if edited is None or 2 * len(edited) > len(self._scheduled):
            self._scheduled = self._ledger.scheduled()
        else:
            now = self._ledger.loaded(edited).specs
            left = {n: spec for n, spec in self._scheduled.items() if n not in edited}
            self._scheduled = {**left, **now}
        self._version = version


class Scraper:
    """Computes again what has changed since the last scrape. Not thread-safe.

    counters: fields of a job's hash. Of each job one line of integers is read: its histograms, its
    counters, and its status.
    """

    def __init__(self, ledger: Ledger, broker: Queues | None, counters: Sequence[str]) -> None:
        self._ledger = ledger
        self._broker = broker
        self._fields = (*DURATIONS, *START_DELAYS, *counters, *FIELDS)
        self._expectations = Expectations()
        self._resets = CounterResets()
        self._known: dict[str, Job] = {}
        self._specs = Specs(ledger)

    def scrape(self, shard: Shard = EVERYTHING) -> Scrape:
        started, ledger = time.monotonic(), self._ledger
        loaded = self._specs.now()
        specs = {name: spec for name, spec in loaded.items() if shard.has(name)}
        now, roll, open_runs = ledger.now(), ledger.presences.roll(), ledger.open_runs_of([*specs])
        digests = [(name, self._digest_of(name)) for name in specs]
        read = ledger.figures.changed(digests, self._fields)
        known: dict[str, Job] = {}
        try:
            for (name, spec), (digest, line) in zip(specs.items(), read, strict=True):
                before, runs = self._known.pop(name, None), open_runs.get(name, NO_RUNS)
                if line or before is None:
                    known[name] = self._job(spec, digest, line, runs, now)
                elif (before.spec, before.open_runs) == (spec, runs):
                    known[name] = before
                else:
                    known[name] = self._of_same_counts(before, spec, runs, now)
        except RedisError:
            self._known |= known
            raise
        others = self._known.items()
        self._known = {name: of_job for name, of_job in others if name in loaded} | known
        self._expectations.forget_removed(len(loaded))
        self._resets.forget_removed(loaded)
        broker = self._broker or LedgerQueues(ledger.client, roll)
        beat, outbound = ledger.outbound.figures()
        return Scrape(
            started=started,
            at=now,
            loaded=len(loaded),
            jobs=[*known.values()],
            beat=beat,
            roll=roll,
            outbound=outbound,
            queues=queues(loaded.values(), roll, broker, ledger.drains.since())
            if shard.is_first
            else (),
        )

    def _digest_of(self, name: str) -> str:
        known = self._known.get(name)
        return known.digest if known else UNKNOWN

    def _job(
        self, spec: JobSpec, digest: str, line: str, open_runs: OpenRuns, now: datetime
    ) -> Job:
        integers = tuple(map(int, line.split(" ")))
        of_job = Status._make(integers[-FIELDS_OF_STATUS:])
        counted = self._resets.held(spec.name, of_job.created, integers[:-FIELDS_OF_STATUS])
        durations = histogram_of(counted[:END_OF_DURATIONS])
        expected = self._expectations.of(spec, durations, of_job, now)
        return Job(spec, counted, of_job, open_runs, expected, digest)

    def _of_same_counts(
        self, before: Job, spec: JobSpec, open_runs: OpenRuns, now: datetime
    ) -> Job:
        expected = self._expectations.of(spec, before.durations, before.status, now)
        return replace(before, spec=spec, open_runs=open_runs, expected=expected)
