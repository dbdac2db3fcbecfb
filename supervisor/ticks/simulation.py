"""A discrete-event simulation of the supervisor: `policies.decide` on a virtual clock.

1. The agenda is a heap of what happens when; the clock jumps from one entry to the next.
2. A tick asks for its job's lock; `decide` says what becomes of the run, as admission does.
3. A run that has the lock goes to its queue and begins when a slot is free, first come, first
   served. Behind its `start_deadline` it expires.
4. A run that ends gives the lock back, and the longest waiting run has it at that instant.

Three things are simpler than the real world: every attempt succeeds unless a time limit ends it,
a replaced run ends as soon as it is asked to, and messages take no time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count, takewhile
from statistics import median
from typing import assert_never

from supervisor.job.policies import Decision, Situation, SkipReason, decide
from supervisor.job.run import RunState
from supervisor.job.spec import SERIAL_PREFIX, JobSpec
from supervisor.schedule import missed_before, schedule_of, ticks_after
from supervisor.times import INSTANT


@dataclass(eq=False, slots=True)
class SimulatedJob:
    """`ticks`: its nominal times in order. `duration`: called once for each run that starts."""

    spec: JobSpec
    ticks: Iterator[datetime]
    duration: Callable[[], timedelta]
    queue: str
    lock: str = field(init=False)
    consecutive_skips: int = 0

    def __post_init__(self) -> None:
        self.lock = self.spec.lock

    def work(self) -> tuple[timedelta, RunState]:
        """How long the next run takes, and how it ends."""
        duration = self.duration()
        limit = self.spec.soft_time_limit or self.spec.time_limit
        if limit is not None and duration > limit:
            return limit, RunState.TIMED_OUT
        return duration, RunState.SUCCEEDED


@dataclass(eq=False, slots=True)
class SimulatedRun:
    """`waiting_since`: when it was first refused the lock; `replaces`: it is to replace another.

    outcome: how it ends unless something intervenes.
    """

    job: SimulatedJob
    nominal_at: datetime
    state: RunState = RunState.WAITING
    requeues: int = 0
    waiting_since: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    outcome: RunState = RunState.SUCCEEDED
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """A run changed to a state; `reason` as in the ledger."""

    at: datetime
    run: SimulatedRun
    state: RunState
    reason: str = ""


@dataclass(slots=True)
class Lock:
    """`holders`: in the order in which they were given it; `waiting`: first in, first out."""

    holders: dict[SimulatedRun, None] = field(default_factory=dict)
    waiting: deque[SimulatedRun] = field(default_factory=deque)

    def has_room_for(self, run: SimulatedRun) -> bool:
        most = run.job.spec.most_running
        return most is None or len(self.holders) < most


@dataclass(slots=True)
class Queue:
    """`slots`: how many runs can be running at once; None for any number."""

    slots: int | None
    backlog: dict[SimulatedRun, None] = field(default_factory=dict)
    busy: int = 0

    @classmethod
    def named(cls, name: str, slots: int | None) -> Queue:
        return cls(1 if name.startswith(SERIAL_PREFIX) else slots)

    def take(self) -> SimulatedRun | None:
        """Takes the run for a free slot: the one that has been queued longest."""
        if not self.backlog or (self.slots is not None and self.busy >= self.slots):
            return None
        run = next(iter(self.backlog))
        del self.backlog[run]
        self.busy += 1
        return run


class Happening(IntEnum):
    """What can be due at an instant, in the order in which it is dealt with.

    A run that ends at the very time of a tick has ended: beat rescues and promotes before it emits.
    """

    END = 0
    DEADLINE = 1
    WAIT_ENDS = 2
    DUE = 3
    TICK = 4


Entry = tuple[datetime, Happening, int, SimulatedRun]


def simulate(
    jobs: Iterable[SimulatedJob], until: datetime, slots: int | None = None
) -> Iterator[Transition]:
    """All that happens before `until`; `slots`: of each queue that is not serial."""
    world = World(slots)
    for job in jobs:
        world.expect_tick(job)
    while world.is_due_before(until):
        yield from world.step()


class World:
    """The agenda, the locks and the queues. Each step gives the transitions that it led to."""

    def __init__(self, slots: int | None = None) -> None:
        self._agenda: list[Entry] = []
        self._number = count()
        self._locks: dict[str, Lock] = defaultdict(Lock)
        self._queues: dict[str, Queue] = {}
        self._slots = slots
        self._transitions: list[Transition] = []

    def expect_tick(self, job: SimulatedJob) -> None:
        at = next(job.ticks, None)
        if at is not None:
            self._expect(at, Happening.TICK, SimulatedRun(job, at))

    def is_due_before(self, until: datetime) -> bool:
        return bool(self._agenda) and self._agenda[0][0] < until

    def step(self) -> list[Transition]:
        """What the next entry of the agenda leads to."""
        at, happening, _, run = heappop(self._agenda)
        self._transitions = []
        match happening:
            case Happening.TICK:
                self._admit(run, at)
                self.expect_tick(run.job)
            case Happening.DUE:
                if run.state is RunState.WAITING:
                    self._place(run, at)
            case Happening.WAIT_ENDS:
                if run.state is RunState.WAITING:
                    self._end_wait(run, at)
            case Happening.DEADLINE:
                if run.state is RunState.QUEUED:
                    self._finish(run, RunState.EXPIRED, at)
            case Happening.END:
                if run.state is RunState.RUNNING:
                    self._finish(run, run.outcome, at)
            case _:
                assert_never(happening)
        return self._transitions

    def _admit(self, run: SimulatedRun, at: datetime) -> None:
        if run.job.spec.paused:
            self._change(run, RunState.EXCLUDED, at, "paused")
        else:
            self._place(run, at)

    def _place(self, run: SimulatedRun, at: datetime) -> None:
        lock, spec = self._lock_of(run), run.job.spec
        self._promote(lock, at)
        verdict = decide(spec.overlap, situation_of(run, lock))
        match verdict.decision:
            case Decision.START:
                self._queue(run, at)
            case Decision.SKIP:
                assert verdict.reason
                self._skip(run, verdict.reason, at)
            case Decision.WAIT:
                if self._wait(run, at):
                    lock.waiting.append(run)
            case Decision.REQUEUE:
                if self._wait(run, at, "requeue"):
                    run.requeues += 1
                    self._expect(at + spec.requeue_delay, Happening.DUE, run)
            case Decision.REPLACE:
                self._replace(run, lock, at)
            case _:
                assert_never(verdict.decision)

    def _wait(self, run: SimulatedRun, at: datetime, reason: str = "") -> bool:
        """Whether the run may wait (longer); it is skipped once it has waited for `max_wait`."""
        longest = run.job.spec.max_wait
        if longest is not None and run.nominal_at + longest <= at:
            self._skip(run, SkipReason.WAIT_EXPIRED, at)
            return False
        self._keep_waiting(run, at, reason)
        return True

    def _keep_waiting(self, run: SimulatedRun, at: datetime, reason: str) -> None:
        longest = run.job.spec.max_wait
        if run.waiting_since is None:
            run.waiting_since = at
            if longest is not None:
                self._expect(run.nominal_at + longest, Happening.WAIT_ENDS, run)
        self._change(run, RunState.WAITING, at, reason)

    def _replace(self, run: SimulatedRun, lock: Lock, at: datetime) -> None:
        """The run is next; the holder ends, and a run that was to replace it earlier is skipped."""
        if lock.waiting and lock.waiting[0].replaces:
            self._skip(lock.waiting.popleft(), SkipReason.REPLACED, at)
        run.replaces = True
        lock.waiting.appendleft(run)
        self._keep_waiting(run, at, "replace")
        if lock.holders:
            self._finish(next(iter(lock.holders)), RunState.REPLACED, at)

    def _end_wait(self, run: SimulatedRun, at: datetime) -> None:
        waiting = self._lock_of(run).waiting
        if run in waiting:  # else it is between two re-queues
            waiting.remove(run)
        self._skip(run, SkipReason.WAIT_EXPIRED, at)

    def _promote(self, lock: Lock, at: datetime) -> None:
        while lock.waiting and lock.has_room_for(lock.waiting[0]):
            self._queue(lock.waiting.popleft(), at)

    def _queue(self, run: SimulatedRun, at: datetime) -> None:
        self._lock_of(run).holders[run] = None
        run.queued_at = at
        self._change(run, RunState.QUEUED, at)
        queue = self._queue_of(run)
        queue.backlog[run] = None
        self._dispatch(queue, at)
        if run.state is RunState.QUEUED:
            self._expect(at + run.job.spec.start_deadline, Happening.DEADLINE, run)

    def _dispatch(self, queue: Queue, at: datetime) -> None:
        while run := queue.take():
            run.started_at, run.job.consecutive_skips = at, 0
            self._change(run, RunState.RUNNING, at)
            duration, run.outcome = run.job.work()
            self._expect(at + duration, Happening.END, run)

    def _finish(self, run: SimulatedRun, outcome: RunState, at: datetime) -> None:
        queue, lock = self._queue_of(run), self._lock_of(run)
        if run.started_at is None:
            del queue.backlog[run]
        else:
            queue.busy -= 1
        run.finished_at = at
        self._change(run, outcome, at)
        del lock.holders[run]
        self._promote(lock, at)
        self._dispatch(queue, at)

    def _skip(self, run: SimulatedRun, reason: SkipReason, at: datetime) -> None:
        run.job.consecutive_skips += 1
        self._change(run, RunState.SKIPPED, at, reason.value)

    def _change(self, run: SimulatedRun, state: RunState, at: datetime, reason: str = "") -> None:
        run.state = state
        self._transitions.append(Transition(at, run, state, reason))

    def _expect(self, at: datetime, happening: Happening, run: SimulatedRun) -> None:
        heappush(self._agenda, (at, happening, next(self._number), run))

    def _lock_of(self, run: SimulatedRun) -> Lock:
        return self._locks[run.job.lock]

    def _queue_of(self, run: SimulatedRun) -> Queue:
        name = run.job.queue
        return self._queues.setdefault(name, Queue.named(name, self._slots))


def situation_of(run: SimulatedRun, lock: Lock) -> Situation:
    spec = run.job.spec
    return Situation(
        running=len(lock.holders),
        max_running=spec.most_running,
        waiting=len(lock.waiting),
        requeues=run.requeues,
        skips=run.job.consecutive_skips,
        max_waiting=spec.max_waiting,
        max_requeues=spec.max_requeues,
        max_skips=spec.max_consecutive_skips,
        on_max_skips=spec.then,
    )


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
    """What became of one job's ticks: excluded, skipped, started, ended unstarted, or still open.

    waits: seconds for which runs waited for the lock, including those that were then skipped;
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
    """What is counted for one queue. `length`: runs in it that have not begun."""

    lateness: Lateness = field(default_factory=Lateness)
    busy_seconds: float = 0.0
    busy: int = 0
    most_busy: int = 0
    length: int = 0
    longest: int = 0
    seen_at: datetime | None = None

    def measure_length(self, at: datetime) -> None:
        """Call it before a change: what passes through at one instant is not counted."""
        if at != self.seen_at:
            self.longest = max(self.longest, self.length)
            self.seen_at = at


@dataclass(slots=True)
class Tally:
    """What a simulation came to; `jobs` and `queues` by name, in the order of their first runs."""

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
            job.waits.append((at - run.waiting_since).total_seconds())

    def _count_start(
        self, job: JobTally, queue: QueueTally, run: SimulatedRun, at: datetime
    ) -> None:
        late = (at - run.nominal_at).total_seconds()
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
        queue.busy_seconds += (run.finished_at - run.started_at).total_seconds()

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
                    busy = (self.ended_at - run.started_at).total_seconds()
                    self.queues[run.job.queue].busy_seconds += busy


def ticks_of(spec: JobSpec, start: datetime, end: datetime) -> Iterator[datetime]:
    """The nominal times of a job in [start, end), one by one: there may be millions."""
    return takewhile(lambda at: at < end, ticks_after(schedule_of(spec), start - INSTANT))


def number_of_ticks(spec: JobSpec, start: datetime, end: datetime) -> int:
    return missed_before(schedule_of(spec), start - INSTANT, end - INSTANT, keep=0)[0]
