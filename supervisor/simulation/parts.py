"""What a simulated world is made of: jobs, runs, locks, queues, and what happens to runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from supervisor.job.spec import SERIAL_PREFIX, JobSpec
from supervisor.runs.run import RunState


@dataclass(eq=False, slots=True)
class SimulatedJob:
    """`ticks`: its nominal times in order. `duration`: asked once for each run that starts."""

    spec: JobSpec
    ticks: Iterator[datetime]
    duration: Callable[[], timedelta]
    queue: str
    lock: str = field(init=False)
    consecutive_skips: int = 0

    def __post_init__(self) -> None:
        self.lock = self.spec.lock

    def work(self) -> tuple[timedelta, RunState]:
        """How long the next run is at work, and how that ends."""
        duration = self.duration()
        limit = self.spec.soft_time_limit or self.spec.time_limit
        if limit is not None and duration > limit:
            return limit, RunState.TIMED_OUT
        return duration, RunState.SUCCEEDED


@dataclass(eq=False, slots=True)
class SimulatedRun:
    """`waiting_since`: when it was first refused the lock; `replaces`: it is to replace another.

    outcome: how it ends when nothing comes between.
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
    """A run came to a state; `reason` as in the ledger."""

    at: datetime
    run: SimulatedRun
    state: RunState
    reason: str = ""


@dataclass(slots=True)
class Lock:
    """`holders`: in the order in which they were given it; `waiting`: first in, first out."""

    holders: dict[SimulatedRun, None] = field(default_factory=dict)
    waiting: deque[SimulatedRun] = field(default_factory=deque)

    @property
    def oldest_holder(self) -> SimulatedRun | None:
        return next(iter(self.holders), None)

    def has_room_for(self, run: SimulatedRun) -> bool:
        most = run.job.spec.most_running
        return most is None or len(self.holders) < most


@dataclass(slots=True)
class Queue:
    """`slots`: how many runs can be at work at once; None for any number."""

    slots: int | None
    backlog: dict[SimulatedRun, None] = field(default_factory=dict)
    busy: int = 0

    @classmethod
    def named(cls, name: str, slots: int | None) -> Queue:
        return cls(1 if name.startswith(SERIAL_PREFIX) else slots)

    def take(self) -> SimulatedRun | None:
        """The run that a free slot is for: the one that is queued longest."""
        if not self.backlog or (self.slots is not None and self.busy >= self.slots):
            return None
        run = next(iter(self.backlog))
        del self.backlog[run]
        self.busy += 1
        return run


class Happening(IntEnum):
    """What is due at an instant, in the order in which the same instant deals with it.

    A run that ends at the very time of a tick has ended: beat rescues and promotes before it emits.
    """

    END = 0
    DEADLINE = 1
    PATIENCE = 2
    DUE = 3
    TICK = 4
