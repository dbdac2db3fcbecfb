"""All that one scrape reads, in a number of round trips that grows by four a thousand jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues
from supervisor.ledger.records import BeatRecord, JobFacts, JobRecord, job_from
from supervisor.ledger.runs import Ledger
from supervisor.spec import JobSpec
from supervisor.web.monotony import Monotony
from supervisor.web.outlook import Outlook, Outlooks


class Queues(Protocol):
    """The queues of a broker: those of a job, and their lengths as far as they can be told."""

    def of(self, spec: JobSpec) -> tuple[str, ...]: ...

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """`length`: None when nobody could tell."""

    name: str
    length: int | None
    consumers: int
    is_serial: bool


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

    def __init__(self, ledger: Ledger, queues: Queues | None) -> None:
        self._ledger = ledger
        self._queues = queues
        self._outlooks = Outlooks()
        self._monotony = Monotony()
        self._known: dict[str, tuple[JobFacts, Job]] = {}

    def scrape(self) -> Scrape:
        started, ledger = time.monotonic(), self._ledger
        specs = list(ledger.specs().values())
        facts, now, roll = ledger.facts_of(specs), ledger.now(), ledger.presences.roll()
        self._known = {found[0].name: (found, self._job(found, now)) for found in facts}
        self._outlooks.forget_all_but(len(specs))
        broker = self._queues or LedgerQueues(ledger.client, roll)
        return Scrape(
            started=started,
            jobs=[job for _, job in self._known.values()],
            beat=ledger.beat(),
            roll=roll,
            queues=queues(specs, roll, broker),
        )

    def _job(self, facts: JobFacts, now: datetime) -> Job:
        known = self._known.get(facts[0].name)
        if known is not None and known[0] == facts:
            return known[1]
        record = self._monotony.held(job_from(*facts))
        return Job(record, self._outlooks.of(record, now))


def queues(specs: Iterable[JobSpec], roll: Roll, broker: Queues) -> list[Queue]:
    """Those that jobs go to, and those that workers consume."""
    serial: set[str] = set()
    names = {queue for worker in roll.workers for queue in worker.queues}
    for spec in specs:
        names.update(broker.of(spec))
        if spec.serial_queue:
            serial.add(spec.serial_queue)
    lengths = broker.lengths(sorted(names)) if names else {}
    return [
        Queue(name, lengths.get(name), roll.consumers(name), name in serial)
        for name in sorted(names)
    ]
