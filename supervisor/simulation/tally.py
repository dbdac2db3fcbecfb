"""What a simulation came to, per job and per queue: counted as its transitions are said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from supervisor.runs.run import RunState
from supervisor.simulation.parts import SimulatedRun, Transition


@dataclass(slots=True)
class Lateness:
    """How long after their nominal times runs began."""

    seconds: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    @property
    def longest(self) -> float | None:
        return max(self.seconds, default=None)


@dataclass(slots=True)
class JobTally:
    """Of one job: ticks are excluded, skipped, started, ended unstarted, or open at the end.

    waits: seconds for which runs waited for the lock, those included that were skipped in the end;
    unstarted: runs that had the lock and ended before they began, by outcome.
    """

    ticks: int = 0
    excluded: int = 0
    started: int = 0
    requeued: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    finished: Counter[RunState] = field(default_factory=Counter)
    unstarted: Counter[RunState] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    lateness: Lateness = field(default_factory=Lateness)
    waiting: int = 0
    queued: int = 0
    running: int = 0
    most_running: int = 0


@dataclass(slots=True)
class QueueTally:
    """Of one queue; `length` counts the runs in it that have not begun."""

    lateness: Lateness = field(default_factory=Lateness)
    busy_seconds: float = 0.0
    busy: int = 0
    most_busy: int = 0
    length: int = 0
    longest: int = 0
    seen_at: datetime | None = None

    def measure_length(self, at: datetime) -> None:
        """Before a change: what passes through a queue at one instant is not queued in it."""
        if at != self.seen_at:
            self.longest = max(self.longest, self.length)
            self.seen_at = at


@dataclass(slots=True)
class Tally:
    """`jobs` and `queues` by name, in the order in which they came up."""

    started_at: datetime
    ended_at: datetime
    jobs: dict[str, JobTally] = field(default_factory=dict)
    queues: dict[str, QueueTally] = field(default_factory=dict)
    _open: dict[SimulatedRun, None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, transitions: Iterable[Transition], started_at: datetime, ended_at: datetime
    ) -> Tally:
        """`started_at`, `ended_at`: of the simulated time."""
        tally = cls(started_at, ended_at)
        for transition in transitions:
            tally._note(transition)
        tally._settle()
        return tally

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.started_at).total_seconds()

    def _note(self, transition: Transition) -> None:
        run, at = transition.run, transition.at
        job = self.jobs.setdefault(run.job.spec.name, JobTally())
        queue = self.queues.setdefault(run.job.queue, QueueTally())
        queue.measure_length(at)
        if run not in self._open:
            self._open[run] = None
            job.ticks += 1
        match transition.state:
            case RunState.EXCLUDED:
                job.excluded += 1
            case RunState.WAITING:
                job.requeued += transition.reason == "requeue"
            case RunState.SKIPPED:
                job.skipped[transition.reason] += 1
                self._count_wait(job, run, at)
            case RunState.QUEUED:
                queue.length += 1
                self._count_wait(job, run, at)
            case RunState.RUNNING:
                self._count_start(job, queue, run, at)
            case outcome:
                self._count_end(job, queue, run, outcome)
        if not transition.state.is_open:
            del self._open[run]

    def _count_wait(self, job: JobTally, run: SimulatedRun, at: datetime) -> None:
        if run.waiting_since is not None:
            job.waits.append(seconds(at - run.waiting_since))

    def _count_start(
        self, job: JobTally, queue: QueueTally, run: SimulatedRun, at: datetime
    ) -> None:
        late = seconds(at - run.nominal_at)
        for lateness in (job.lateness, queue.lateness):
            lateness.seconds.append(late)
        job.started += 1
        job.running += 1
        job.most_running = max(job.most_running, job.running)
        queue.length -= 1
        queue.busy += 1
        queue.most_busy = max(queue.most_busy, queue.busy)

    def _count_end(
        self, job: JobTally, queue: QueueTally, run: SimulatedRun, outcome: RunState
    ) -> None:
        if run.started_at is None or run.finished_at is None:
            job.unstarted[outcome] += 1
            queue.length -= 1
            return
        job.finished[outcome] += 1
        job.running -= 1
        queue.busy -= 1
        queue.busy_seconds += seconds(run.finished_at - run.started_at)

    def _settle(self) -> None:
        """Counts what is open when the simulated time is over."""
        for queue in self.queues.values():
            queue.measure_length(self.ended_at)
        for run in self._open:
            job = self.jobs[run.job.spec.name]
            match run.state:
                case RunState.WAITING:
                    job.waiting += 1
                    self._count_wait(job, run, self.ended_at)
                case RunState.QUEUED:
                    job.queued += 1
                case _:
                    assert run.started_at
                    busy = seconds(self.ended_at - run.started_at)
                    self.queues[run.job.queue].busy_seconds += busy


def seconds(duration: timedelta) -> float:
    return duration.total_seconds()
