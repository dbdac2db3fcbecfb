"""One campaign: faults at random for a time, then quiet until every run has come to its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from supervisor.features.following.store import Followers
from supervisor.store.failures import RedisError
from tests.waiting import wait_until
from tools.chaos.books import Books
from tools.chaos.chronicle import Window
from tools.chaos.cluster import Cluster
from tools.chaos.evidence import Evidence, Finding
from tools.chaos.faults import FAULTS, Fault, strike
from tools.chaos.intervals import Interval
from tools.chaos.jobs import EDITED, JOBS
from tools.chaos.judgement import FINAL, judge
from tools.chaos.leadership import Leadership
from tools.chaos.witness import executions, messages

PACE_SECONDS = 0.05
POLL_SECONDS = 0.25
READ_SECONDS = 10.0
HUNT_SECONDS = 3.0
FIRST_TICK_SECONDS = 60.0

#: Of what is still going on, the last moments are not judged: a death may not be known yet.
UNSURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    faults: Sequence[Fault] = FAULTS

    fault_seconds: tuple[float, float] = (1.3, 2.1)
    """From one fault to the next, thirty or more a minute."""

    ending_seconds: float = 90.0
    """To come to an end after the chaos."""

    hunts: bool = False
    """It ends with the first finding that nothing can change."""


@dataclass(frozen=True, slots=True)
class Outcome:
    evidence: Sequence[Evidence]

    of_service: Sequence[Finding]
    """Findings that are about no job."""

    found: Sequence[Finding] = ()
    """What a hunt ended with."""


class Campaign:
    """To be used once, from the main thread."""

    def __init__(self, cluster: Cluster, rng: random.Random, plan: Plan | None = None) -> None:
        self._cluster = cluster
        self._rng = rng
        self._plan = plan or Plan()
        self._epoch = time.time() - time.monotonic()
        self._books = Books(self._epoch)
        self._next_poll = 0.0
        self._next_read = 0.0
        self._next_hunt = 0.0
        self._edits: list[tuple[int, float]] = []
        self._suspected: set[tuple[str, str]] = set()
        self._found: list[Finding] = []
        self.started = 0.0

    def run(self, minutes: float) -> Outcome:
        self._cluster.start()
        self._ledger = self._cluster.open_ledger()
        self._leadership = Leadership(
            self._ledger, self._cluster.beats, self._cluster.chronicle, self._epoch
        )
        wait_until(self._has_ticks, FIRST_TICK_SECONDS)
        self.started = time.monotonic()
        self._inject(self.started + minutes * 60)
        if self._found:
            return Outcome([], [], self._found)
        self._until(lambda: self._cluster.is_whole)
        for job in JOBS:
            if not job.after:
                self._ledger.pause(job.name)
        chaos = Interval(self.started, time.monotonic())
        self._until(self._is_drained)
        until = time.monotonic()
        self._cluster.stop_members()
        self._cluster.chronicle.close_all()
        self._books.read(self._ledger)
        windows = self._cluster.chronicle.windows
        evidence = list(self._evidence(chaos, until, windows, with_counters=True))
        return Outcome(evidence, [*self._leadership.findings(windows), *self._lost_edits()])

    def _lost_edits(self) -> Iterator[Finding]:
        version = self._ledger.spec(EDITED).kwargs["version"]
        if version != self._cluster.version:
            detail = f"the file has version {self._cluster.version}, the ledger {version}"
            yield Finding("edit not loaded", EDITED, detail)

    def _has_ticks(self) -> bool:
        self._books.read(self._ledger)
        return all(rows for job, rows in self._books.rows.items() if job not in RARE)

    def _inject(self, until: float) -> None:
        next_fault = time.monotonic()
        while time.monotonic() < until and not self._found:
            self._keep_going()
            if time.monotonic() >= next_fault:
                strike(self._cluster, self._leadership.leader, self._plan.faults)
                next_fault = time.monotonic() + self._rng.uniform(*self._plan.fault_seconds)
            if self._plan.hunts and time.monotonic() >= self._next_hunt:
                self._hunt()
                self._next_hunt = time.monotonic() + HUNT_SECONDS
            time.sleep(PACE_SECONDS)

    def _until(self, is_done: Callable[[], bool]) -> None:
        """Goes on without new faults; what is not done in time shows in the evidence."""
        deadline = time.monotonic() + self._plan.ending_seconds
        while time.monotonic() < deadline and not is_done():
            self._keep_going()
            time.sleep(POLL_SECONDS)

    def _is_drained(self) -> bool:
        """By books that are read again, and more often than during the chaos."""
        self._books.read(self._ledger)
        return not self._books.open_runs and not Followers(self._ledger).endings(1)

    def _keep_going(self) -> None:
        """Restarts and resumes what is due; reads the ledger while its server answers."""
        self._cluster.agenda.run_due()
        if (since := self._cluster.older_since) is not None:
            self._cluster.older_since = None
            self._books.forget(since)
            self._edits = [(version, at) for version, at in self._edits if at < since]
            self._next_read = 0.0
        self._cluster.restart_the_dead()
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_SECONDS
        self._cluster.look_for_workers()
        if not self._cluster.answers:
            return
        self._leadership.poll()
        self._note_edit()
        if now >= self._next_read:
            self._next_read = now + READ_SECONDS
            self._books.read(self._ledger)

    def _note_edit(self) -> None:
        """The ledger has a version of the job that is edited: each later run is of that."""
        version = self._ledger.spec(EDITED).kwargs["version"]
        if version not in {known for known, _ in self._edits}:
            self._edits.append((version, time.monotonic()))

    def _hunt(self) -> None:
        """Judges while it goes on. What is found twice in a row is found."""
        if not self._cluster.answers:
            return
        try:
            self._books.read(self._ledger)
        except RedisError:  # it has just been struck
            return
        until = time.monotonic() - UNSURE_SECONDS
        windows = self._cluster.chronicle.windows_until(time.monotonic())
        evidence = self._evidence(
            Interval(self.started, until), until, windows, with_counters=False
        )
        findings = [
            *(found for each in evidence for found in judge(each) if found.kind in FINAL),
            *self._leadership.findings(windows),
        ]
        known = {(found.kind, found.job) for found in findings}
        self._found = [f for f in findings if (f.kind, f.job) in known & self._suspected]
        self._suspected = known

    def _evidence(
        self, chaos: Interval, until: float, windows: Sequence[Window], *, with_counters: bool
    ) -> Iterator[Evidence]:
        chronicle, death = self._cluster.chronicle, self._cluster.coroner.death
        seen = executions(self._cluster.witness, death, windows, until)
        received = messages(self._cluster.messages)
        rows = self._books.rows
        for job in JOBS:
            yield Evidence(
                job=job,
                rows=rows[job.name],
                counters=self._ledger.job(job.name).counters if with_counters else {},
                executions=[e for e in seen if e.job == job.name],
                windows=windows,
                chaos=chaos,
                until=until,
                ends=list(chronicle.ends),
                followed=rows.get(job.after, ()),
                messages=received,
                repeated=self._cluster.redelivery.runs,
                edits=self._edits if job.name == EDITED else [],
            )


#: The campaign does not wait for the first tick of these.
RARE = {job.name for job in JOBS if job.every > 5}
