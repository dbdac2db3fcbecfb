"""All that one scrape reads: fifty calls a thousand jobs, not waited for one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from redis.exceptions import RedisError

from supervisor.execution.consumption import Queue, Queues, queues
from supervisor.job.spec import JobSpec
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.histograms import HISTOGRAM_FIELDS, Histogram, histogram_of
from supervisor.ledger.open_runs import NO_RUNS, OpenRuns
from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues
from supervisor.ledger.runs import Ledger
from supervisor.web import status
from supervisor.web.monotony import Counts, Monotony
from supervisor.web.outlook import Outlook, Outlooks
from supervisor.web.status import Status

DURATIONS, START_DELAYS = HISTOGRAM_FIELDS["duration"], HISTOGRAM_FIELDS["start_delay"]

#: Where the line of a job has what.
END_OF_DURATIONS = len(DURATIONS)
END_OF_HISTOGRAMS = END_OF_DURATIONS + len(START_DELAYS)
FIELDS_OF_STATUS = len(status.FIELDS)


@dataclass(frozen=True, slots=True)
class Job:
    """`counters`: in the order in which they were asked for."""

    spec: JobSpec
    counters: Counts
    durations: Histogram
    start_delays: Histogram
    status: Status
    open_runs: OpenRuns
    outlook: Outlook


class Read(NamedTuple):
    """What was read of a job; `line` is that of Scraper."""

    spec: JobSpec
    line: str
    open_runs: OpenRuns


@dataclass(frozen=True, slots=True)
class Scrape:
    """`started`: on the monotonic clock."""

    started: float
    jobs: Sequence[Job]
    beat: BeatRecord
    roll: Roll
    queues: Sequence[Queue]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Scraper:
    """Computes anew what has changed since the last scrape. Not to be called by two at once.

    counters: fields of a job's hash. Of each job one line of integers is read: its histograms, its
    counters, and its status.
    """

    def __init__(self, ledger: Ledger, broker: Queues | None, counters: Sequence[str]) -> None:
        self._ledger = ledger
        self._broker = broker
        self._fields = (*DURATIONS, *START_DELAYS, *counters, *status.FIELDS)
        self._outlooks = Outlooks()
        self._monotony = Monotony()
        self._known: dict[str, tuple[Read, Job]] = {}

    def scrape(self) -> Scrape:
        started, ledger = time.monotonic(), self._ledger
        specs = ledger.specs()
        now, roll, open_runs = ledger.now(), ledger.presences.roll(), ledger.open_runs_of([*specs])
        lines = ledger.figures.of([*specs], self._fields)
        known: dict[str, tuple[Read, Job]] = {}
        try:
            for (name, spec), line in zip(specs.items(), lines, strict=True):
                read = Read(spec, line, open_runs.get(name, NO_RUNS))
                before = self._known.pop(name, None)
                is_same = before is not None and before[0] == read
                known[name] = before if before and is_same else (read, self._job(read, now))
        except RedisError:
            self._known |= known
            raise
        self._known = known
        self._outlooks.forget_all_but(len(specs))
        self._monotony.forget_all_but(known)
        broker = self._broker or LedgerQueues(ledger.client, roll)
        return Scrape(
            started=started,
            jobs=[job for _, job in known.values()],
            beat=ledger.beat(),
            roll=roll,
            queues=queues(list(specs.values()), roll, broker, ledger.drains.since()),
        )

    def _job(self, read: Read, now: datetime) -> Job:
        integers = tuple(map(int, read.line.split(" ")))
        of_job = Status._make(integers[-FIELDS_OF_STATUS:])
        spec, counted = read.spec, integers[:-FIELDS_OF_STATUS]
        counted = self._monotony.held(spec.name, of_job.created, counted)
        durations = histogram_of(counted[:END_OF_DURATIONS])
        return Job(
            spec=spec,
            counters=counted[END_OF_HISTOGRAMS:],
            durations=durations,
            start_delays=histogram_of(counted[END_OF_DURATIONS:END_OF_HISTOGRAMS]),
            status=of_job,
            open_runs=read.open_runs,
            outlook=self._outlooks.of(spec, durations, of_job, now),
        )
