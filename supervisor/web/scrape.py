"""All that one scrape reads, in a number of round trips that grows by four a thousand jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.execution.consumption import Queue, Queues, queues
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues
from supervisor.ledger.records import JobFacts, JobRecord, job_from
from supervisor.ledger.runs import Ledger
from supervisor.web.monotony import Monotony
from supervisor.web.outlook import Outlook, Outlooks


@dataclass(frozen=True, slots=True)
class Job:
    record: JobRecord
    outlook: Outlook


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
    """Computes anew what has changed since the last scrape. Not to be called by two at once."""

    def __init__(self, ledger: Ledger, broker: Queues | None) -> None:
        self._ledger = ledger
        self._broker = broker
        self._outlooks = Outlooks()
        self._monotony = Monotony()
        self._known: dict[str, tuple[JobFacts, Job]] = {}

    def scrape(self) -> Scrape:
        started, ledger = time.monotonic(), self._ledger
        specs = list(ledger.specs().values())
        facts, now, roll = ledger.facts_of(specs), ledger.now(), ledger.presences.roll()
        self._known = {found[0].name: (found, self._job(found, now)) for found in facts}
        self._outlooks.forget_all_but(len(specs))
        broker = self._broker or LedgerQueues(ledger.client, roll)
        return Scrape(
            started=started,
            jobs=[job for _, job in self._known.values()],
            beat=ledger.beat(),
            roll=roll,
            queues=queues(specs, roll, broker, ledger.drains.since()),
        )

    def _job(self, facts: JobFacts, now: datetime) -> Job:
        known = self._known.get(facts[0].name)
        if known is not None and known[0] == facts:
            return known[1]
        record = self._monotony.held(job_from(*facts))
        return Job(record, self._outlooks.of(record, now))
