"""One campaign: faults at random for a time, then quiet until every run has come to its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from tests.chaos.books import Books
from tests.chaos.cluster import Cluster
from tests.chaos.facts import Facts
from tests.chaos.faults import strike
from tests.chaos.intervals import Interval
from tests.chaos.jobs import JOBS
from tests.chaos.leadership import Leadership
from tests.chaos.witness import executions
from tests.waiting import wait_until

#: Between two faults: thirty or more a minute, of which two in three kill.
FAULT_SECONDS = (1.3, 2.1)

PACE_SECONDS = 0.05
LOOK_SECONDS = 0.25
READ_SECONDS = 10.0
FIRST_TICK_SECONDS = 30.0
SETTLE_SECONDS = 90.0


class Campaign:
    """To be used once, from the main thread."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._epoch = time.time() - time.monotonic()
        self._books = Books(self._epoch)
        self._next_look = 0.0
        self._next_read = 0.0

    def run(self, minutes: float) -> list[Facts]:
        self._cluster.start()
        self._ledger = self._cluster.open_ledger()
        self._leadership = Leadership(
            self._ledger, self._cluster.beats, self._cluster.chronicle, self._epoch
        )
        wait_until(self._has_ticks, FIRST_TICK_SECONDS)
        started = time.monotonic()
        self._inject(started + minutes * 60)
        self._until(lambda: self._cluster.is_whole)
        for job in JOBS:
            self._ledger.pause(job.name)
        chaos = Interval(started, time.monotonic())
        self._until(self._is_drained)
        until = time.monotonic()
        self._cluster.stop_members()
        self._books.read(self._ledger)
        return list(self._facts(chaos, until))

    def _has_ticks(self) -> bool:
        self._books.read(self._ledger)
        return all(self._books.rows.values())

    def _inject(self, until: float) -> None:
        next_fault = time.monotonic()
        while time.monotonic() < until:
            self._keep_going()
            if time.monotonic() >= next_fault:
                strike(self._cluster, self._leadership.leader)
                next_fault = time.monotonic() + self._rng.uniform(*FAULT_SECONDS)
            time.sleep(PACE_SECONDS)

    def _until(self, is_done: Callable[[], bool]) -> None:
        """Goes on without new faults; what is not done in time shows in the facts."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and not is_done():
            self._keep_going()
            time.sleep(LOOK_SECONDS)

    def _is_drained(self) -> bool:
        """By books that are read anew, and more often than during the chaos."""
        self._books.read(self._ledger)
        return not self._books.open_runs

    def _keep_going(self) -> None:
        """Restarts and resumes whoever is due; reads the ledger while its server is there."""
        self._cluster.agenda.run_due()
        self._cluster.restart_the_dead()
        now = time.monotonic()
        if now < self._next_look or not self._cluster.server.is_alive:
            return
        self._next_look = now + LOOK_SECONDS
        self._leadership.look()
        if now >= self._next_read:
            self._next_read = now + READ_SECONDS
            self._books.read(self._ledger)

    def _facts(self, chaos: Interval, until: float) -> Iterator[Facts]:
        chronicle, death = self._cluster.chronicle, self._cluster.coroner.death
        chronicle.close_all()
        seen = executions(self._cluster.witness, death, chronicle.windows, until)
        for job in JOBS:
            yield Facts(
                job=job,
                rows=self._books.rows[job.name],
                counters=self._ledger.job(job.name).counters,
                executions=[e for e in seen if e.job == job.name],
                windows=chronicle.windows,
                chaos=chaos,
                until=until,
            )
