"""A discrete-event simulation of the supervisor: `overlap.decide` on a virtual clock.

1. The agenda is a heap of what happens when; the clock jumps from one entry to the next.
2. A tick asks for its job's lock; `decide` says what becomes of the run, as admission does.
3. A run that has the lock goes to its queue and begins when a slot is free, first come, first
   served. Behind its `start_deadline` it expires.
4. A run that ends gives the lock back, and the longest waiting run has it at that instant.

Three things are simpler than the real world: every attempt succeeds unless a time limit ends it,
a replaced run ends as soon as it is asked to, and messages take no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from typing import assert_never

from supervisor.job.overlap import Decision, Situation, SkipReason, decide
from supervisor.runs.run import RunState
from supervisor.simulation.parts import (
    Happening,
    Lock,
    Queue,
    SimulatedJob,
    SimulatedRun,
    Transition,
)

Entry = tuple[datetime, Happening, int, SimulatedRun]


def simulate(
    jobs: Iterable[SimulatedJob], until: datetime, slots: int | None = None
) -> Iterator[Transition]:
    """All that happens before `until`; `slots`: of each queue that is not serial."""
    world = World(slots)
    for job in jobs:
        world.expect_tick(job)
    while (transitions := world.step(until)) is not None:
        yield from transitions


class World:
    """The agenda, the locks, the queues. Each step says what became of runs."""

    def __init__(self, slots: int | None = None) -> None:
        self._agenda: list[Entry] = []
        self._number = count()
        self._locks: dict[str, Lock] = defaultdict(Lock)
        self._queues: dict[str, Queue] = {}
        self._slots = slots
        self._said: list[Transition] = []

    def expect_tick(self, job: SimulatedJob) -> None:
        at = next(job.ticks, None)
        if at is not None:
            self._expect(at, Happening.TICK, SimulatedRun(job, at))

    def step(self, until: datetime) -> list[Transition] | None:
        """What the next entry of the agenda leads to; None when there is none before `until`."""
        if not self._agenda or self._agenda[0][0] >= until:
            return None
        at, happening, _, run = heappop(self._agenda)
        self._said = []
        match happening:
            case Happening.TICK:
                self._admit(run, at)
                self.expect_tick(run.job)
            case Happening.DUE:
                if run.state is RunState.WAITING:
                    self._place(run, at)
            case Happening.PATIENCE:
                if run.state is RunState.WAITING:
                    self._lose_patience(run, at)
            case Happening.DEADLINE:
                if run.state is RunState.QUEUED:
                    self._finish(run, RunState.EXPIRED, at)
            case Happening.END:
                if run.state is RunState.RUNNING:
                    self._finish(run, run.outcome, at)
            case _:
                assert_never(happening)
        return self._said

    def _admit(self, run: SimulatedRun, at: datetime) -> None:
        if run.job.spec.paused:
            self._say(run, RunState.EXCLUDED, at, "paused")
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
        """Whether the run may wait (still); it is skipped when it has waited for `max_wait`."""
        patience = run.job.spec.max_wait
        if patience is not None and run.nominal_at + patience <= at:
            self._skip(run, SkipReason.WAIT_EXPIRED, at)
            return False
        self._keep_waiting(run, at, reason)
        return True

    def _keep_waiting(self, run: SimulatedRun, at: datetime, reason: str) -> None:
        patience = run.job.spec.max_wait
        if run.waiting_since is None:
            run.waiting_since = at
            if patience is not None:
                self._expect(run.nominal_at + patience, Happening.PATIENCE, run)
        self._say(run, RunState.WAITING, at, reason)

    def _replace(self, run: SimulatedRun, lock: Lock, at: datetime) -> None:
        """The run is next; the holder ends, and who was to replace it before gives way."""
        if lock.waiting and lock.waiting[0].replaces:
            self._skip(lock.waiting.popleft(), SkipReason.REPLACED, at)
        run.replaces = True
        lock.waiting.appendleft(run)
        self._keep_waiting(run, at, "replace")
        if lock.oldest_holder:
            self._finish(lock.oldest_holder, RunState.REPLACED, at)

    def _lose_patience(self, run: SimulatedRun, at: datetime) -> None:
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
        self._say(run, RunState.QUEUED, at)
        queue = self._queue_of(run)
        queue.backlog[run] = None
        self._dispatch(queue, at)
        if run.state is RunState.QUEUED:
            self._expect(at + run.job.spec.start_deadline, Happening.DEADLINE, run)

    def _dispatch(self, queue: Queue, at: datetime) -> None:
        while run := queue.take():
            run.started_at, run.job.consecutive_skips = at, 0
            self._say(run, RunState.RUNNING, at)
            duration, run.outcome = run.job.work()
            self._expect(at + duration, Happening.END, run)

    def _finish(self, run: SimulatedRun, outcome: RunState, at: datetime) -> None:
        queue, lock = self._queue_of(run), self._lock_of(run)
        if run.started_at is None:
            del queue.backlog[run]
        else:
            queue.busy -= 1
        run.finished_at = at
        self._say(run, outcome, at)
        del lock.holders[run]
        self._promote(lock, at)
        self._dispatch(queue, at)

    def _skip(self, run: SimulatedRun, reason: SkipReason, at: datetime) -> None:
        run.job.consecutive_skips += 1
        self._say(run, RunState.SKIPPED, at, reason.value)

    def _say(self, run: SimulatedRun, state: RunState, at: datetime, reason: str = "") -> None:
        run.state = state
        self._said.append(Transition(at, run, state, reason))

    def _expect(self, at: datetime, happening: Happening, run: SimulatedRun) -> None:
        heappush(self._agenda, (at, happening, next(self._number), run))

    def _lock_of(self, run: SimulatedRun) -> Lock:
        return self._locks[run.job.lock]

    def _queue_of(self, run: SimulatedRun) -> Queue:
        name = run.job.queue
        if name not in self._queues:
            self._queues[name] = Queue.named(name, self._slots)
        return self._queues[name]


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
