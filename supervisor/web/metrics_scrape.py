"""What one scrape reads of the ledger, before any of it is written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from operator import ge

from prometheus_client import Metric

from supervisor.job.durations import Durations, Histogram
from supervisor.job.spec import JobSpec
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.job_record import (
    HISTOGRAM_FIELDS,
    NO_RUNS,
    JobRecord,
    OpenRuns,
    histogram_from,
    job_from,
)
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Processes
from supervisor.ledger.queues import Queue, Queues
from supervisor.lists.metrics import METRICS
from supervisor.schedule import schedule_of
from supervisor.schedule.expectations import (
    SLACK,
    interval_of,
    late_after,
    next_ticks,
    running_limit,
    usual_duration,
    work_until_success,
)
from supervisor.times import plus


@dataclass(frozen=True, slots=True)
class ScrapedJob:
    """A job as one scrape finds it, and what can be expected of it."""

    spec: JobSpec
    record: JobRecord
    open_runs: OpenRuns
    start_delays: Histogram

    interval: timedelta | None
    """The shortest of its next ticks."""

    late_after: timedelta
    running_limit: timedelta | None
    success_by: datetime | None


def job_of(
    spec: JobSpec,
    fields: Mapping[str, str],
    open_runs: OpenRuns,
    durations: Durations,
    interval: timedelta | None,
) -> ScrapedJob:
    """fields: of the job's hash."""
    record = job_from(spec, fields, open_runs)
    usual = usual_duration(spec, durations, interval)
    late, due = late_after(spec, interval, usual), due_tick(record)
    return ScrapedJob(
        spec=spec,
        record=record,
        open_runs=open_runs,
        start_delays=histogram_from(fields, "start_delay"),
        interval=interval,
        late_after=late,
        running_limit=running_limit(spec, durations),
        success_by=due and plus(due, late + work_until_success(spec, usual) + SLACK),
    )


def due_tick(record: JobRecord) -> datetime | None:
    """The first tick that should end in a success; None while the job is paused."""
    after = record.answered_until
    if after is None or not record.spec.has_schedule:
        return None
    return schedule_of(record.spec).next_after(max(after, record.last_success_at or after))


class Intervals:
    """The shortest interval of each job's next ticks, computed again when these have passed."""

    def __init__(self) -> None:
        self._by_job: dict[str, tuple[JobSpec, timedelta | None, datetime | None]] = {}

    def of(self, spec: JobSpec, now: datetime) -> timedelta | None:
        of_spec, interval, last = self._by_job.get(spec.name, (None, None, None))
        if of_spec is not spec or (last is not None and last <= now):
            ticks = next_ticks(spec, now)
            interval = interval_of(ticks)
            self._by_job[spec.name] = spec, interval, ticks[-1] if ticks else None
        return interval

    def keep(self, jobs: Mapping[str, object]) -> None:
        """Forgets all other jobs."""
        for job in self._by_job.keys() - jobs.keys():
            del self._by_job[job]


class KnownDurations:
    """How long the runs of each job took, read again when further runs have ended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_job: dict[str, tuple[tuple[str | None, ...], Durations]] = {}

    def of(
        self, specs: Mapping[str, JobSpec], hashes: Mapping[str, Mapping[str, str]]
    ) -> Mapping[str, Durations]:
        """hashes: of the jobs. All other jobs are forgotten."""
        fields_of_ends = HISTOGRAM_FIELDS["duration"]
        ends = {name: tuple(map(fields.get, fields_of_ends)) for name, fields in hashes.items()}
        none = {name: (counts, Durations()) for name, counts in ends.items() if not any(counts)}
        as_before = {name: one for name, one in self._by_job.items() if ends.get(name) == one[0]}
        kept = none | as_before
        read = self._ledger.durations_of([specs[name] for name in ends.keys() - kept.keys()])
        self._by_job = kept | {name: (ends[name], durations) for name, durations in read.items()}
        return {name: durations for name, (_, durations) in self._by_job.items()}


class Served:
    """The counters that were served last, so that none goes down.

    Redis may lose its last second of writes. Prometheus takes a counter that fell from 100 to 99
    for one that was reset and counted to 99. So the last value is served until the ledger has
    counted past it. A job whose `created` is another than before is counted from 0 again.
    """

    def __init__(self, counted: Sequence[str]) -> None:
        """counted: the fields of a job's hash that are counters."""
        self._counted = counted
        self._served: dict[str, tuple[str | None, tuple[int, ...]]] = {}

    def monotonic(self, job: str, fields: Mapping[str, str]) -> Mapping[str, str]:
        """The fields of the job's hash, none of its counters lower than before."""
        counts = tuple(int(fields.get(field, 0)) for field in self._counted)
        created, before = self._served.get(job, (None, counts))
        if created == fields.get("created") and not all(map(ge, counts, before)):
            counts = tuple(map(max, counts, before))
            fields = {**fields, **dict(zip(self._counted, map(str, counts), strict=True))}
        self._served[job] = fields.get("created"), counts
        return fields

    def keep(self, jobs: Mapping[str, object]) -> None:
        """Forgets all other jobs."""
        for job in self._served.keys() - jobs.keys():
            del self._served[job]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that one scrape reads."""

    started: float
    """On the monotonic clock."""

    jobs: Sequence[ScrapedJob]
    beat: BeatRecord
    processes: Processes
    queues: Sequence[Queue]
    of_features: Sequence[Metric]


class Scraper:
    """Reads a ledger. Not thread-safe.

    broker: where the lengths of queues come from; without it, as the workers report it. counters:
    those of JobRecord.counters that never go down.
    """

    def __init__(self, ledger: Ledger, broker: Queues | None, counters: Iterable[str]) -> None:
        self._ledger = ledger
        self._broker = broker
        self._intervals = Intervals()
        self._durations = KnownDurations(ledger)
        counted = chain(*HISTOGRAM_FIELDS.values(), (f"n:{name}" for name in counters))
        self._served = Served(tuple(counted))

    def scrape(self) -> Scrape:
        """Raises RedisError."""
        started, ledger, specs = time.monotonic(), self._ledger, self._ledger.specs()
        processes = ledger.presences.processes()
        jobs = list(self._jobs(specs))
        self._intervals.keep(specs)
        self._served.keep(specs)
        of_features = [metric for metrics in METRICS for metric in metrics(ledger)]
        of_queues = ledger.queues(specs.values(), self._broker, processes)
        return Scrape(started, jobs, ledger.beat(), processes, of_queues, of_features)

    def _jobs(self, specs: Mapping[str, JobSpec]) -> Iterator[ScrapedJob]:
        ledger, now = self._ledger, self._ledger.now()
        open_runs = ledger.open_runs_of([*specs])
        hashes = dict(ledger.hashes_of(specs))
        durations = self._durations.of(specs, hashes)
        for name, fields in hashes.items():
            served, spec = self._served.monotonic(name, fields), specs[name]
            runs, interval = open_runs.get(name, NO_RUNS), self._intervals.of(spec, now)
            yield job_of(spec, served, runs, durations[name], interval)
