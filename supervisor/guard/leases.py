"""A lease as the worker's main process sees it, while a child works under it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta

from supervisor.guard import child_table
from supervisor.job.policies import OnLeaseLost
from supervisor.ledger.requests import Asked, Begun, Work
from supervisor.times import clock

#: The part of its life for which a lease is trusted after a renewal was sent; the rest is time to
#: end the work before another may begin.
TRUSTED = 2 / 3

#: The part of that rest for the work to end by itself; then it is killed, and is gone before the
#: lease is.
GRACEFUL = 4 / 5

RENEWALS_PER_TTL = 6

#: A delivery that is refused is over sooner than this.
SURELY_BEGUN_SECONDS = 2.0

#: So long after its task ended, a child has died that was to be killed.
SURELY_OVER_SECONDS = 5.0


@dataclass(slots=True)
class HeldLease:
    """A lease that a child of this worker asks for.

    pid: the child's. is_active: whether the worker still waits for this delivery's task.
    asked: tells, for a ledger that forgot the run, what its caller gave it.
    has_begun: an earlier renewal said so. was_told: the child was sent a signal, and is killed at
    `kill_at` if it is still at work. is_lost: by the clock, and is_anothers: so said the ledger.
    is_gone: the child has ended, and the ledger is still to be told. over_since: when the heartbeat
    first found that the task is no longer active.
    """

    work: Work
    token: str
    pid: int
    is_active: Callable[[], bool]
    asked: Callable[[], Asked] = Asked
    taken_at: float = field(default_factory=clock)
    trusted_until: float = 0.0
    has_begun: bool = False
    is_lost: bool = False
    is_anothers: bool = False
    has_overlapped: bool = False
    was_told: bool = False
    kill_at: float | None = None
    is_gone: bool = False
    over_since: float | None = None

    def __post_init__(self) -> None:
        self.trust_from(self.taken_at)

    @property
    def run_id(self) -> str:
        return self.work.run_id

    @property
    def ttl(self) -> timedelta:
        return timedelta(milliseconds=self.work.rules.lease_ttl_ms)

    @property
    def place(self) -> Hashable:
        """A child has one lease at a time; in the pools without children a process has many."""
        return self.token if self.pid == os.getpid() else self.pid

    @property
    def renewal_seconds(self) -> float:
        return self.ttl.total_seconds() / RENEWALS_PER_TTL

    @property
    def stop_grace(self) -> timedelta:
        return timedelta(milliseconds=self.work.rules.stop_grace_ms)

    @property
    def abort_grace(self) -> timedelta:
        """The time to end in after trust has ended and before the lease does."""
        return min(self.stop_grace, self.ttl * (1 - TRUSTED) * GRACEFUL)

    @property
    def aborts_when_lost(self) -> bool:
        return self.work.rules.on_lease_lost == OnLeaseLost.ABORT

    @property
    def has_surely_begun(self) -> bool:
        """A child says so itself, which may wait for a server that hangs."""
        is_at_work = self.pid == os.getpid() or child_table.is_at_work(self.pid, self.token)
        is_due = clock() - self.taken_at > SURELY_BEGUN_SECONDS
        return self.has_begun or (self.is_active() and is_at_work and is_due)

    @property
    def begun(self) -> Begun:
        """What a renewal says of it."""
        # One that has reported its end is known of no more: its run may be at a later attempt.
        if not self.has_begun or not self.is_active():
            return Begun.UNKNOWN
        # In the pools without children it is not known of a single run.
        is_over = self.pid != os.getpid() and not child_table.is_at_work(self.pid, self.token)
        return Begun.OVER if is_over else Begun.KNOWN

    @property
    def should_be_known(self) -> bool:
        """To the ledger: it is at work, and not another's."""
        is_ending = self.is_lost and self.aborts_when_lost
        return self.is_active() and self.has_surely_begun and not (is_ending or self.is_anothers)

    @property
    def deadline(self) -> float:
        """When something is to be done about it, should no renewal succeed; infinite for never."""
        if self.kill_at is not None:
            return self.kill_at
        return math.inf if self.is_lost or not self.has_surely_begun else self.trusted_until

    def is_over(self) -> bool:
        """Whether the task ended some time ago: its child has reported the end, or given up."""
        if self.is_active() or self.is_gone:
            self.over_since = None
            return False
        self.over_since = self.over_since or clock()
        return clock() - self.over_since > SURELY_OVER_SECONDS

    def trust_from(self, sent_at: float) -> None:
        """A renewal that was sent then has succeeded."""
        self.trusted_until = trusted_until(sent_at, self.ttl)


def trusted_until(asked_at: float, ttl: timedelta) -> float:
    """A lease counts from when it was asked for: nobody knows when the server gave it.

    Both by the clock of elapsed.py.
    """
    return asked_at + ttl.total_seconds() * TRUSTED


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
