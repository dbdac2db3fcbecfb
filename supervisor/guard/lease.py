"""The lease of an attempt, as the worker's main process knows it while a child works under it.

1. The child asks the ledger for the lease just before its task's body. The lease counts from the
   moment it was asked for, by this machine's own clock: no worker knows when the server gave it.
2. The heartbeat renews it every sixth of `lease_ttl`. A renewal counts from when it was sent.
3. It is trusted for two thirds of its time:

       trusted_until = requested_at + 2/3 * lease_ttl

   No body starts with a grant older than that: the lease is asked for again (attempt.py).
4. When trust ends, the work is interrupted. If it has not ended after four fifths of the last
   third, it is killed, so it is gone before the lease is, and before another attempt can begin.

       requested_at             trusted_until                        requested_at + lease_ttl
          |--------------------|-------------------------|---------|
          | renewed every      | interrupted, and may    | killed  | another attempt
          | sixth of lease_ttl | end by itself           |         | may begin

5. A lease that is renewed after all is held again, unless its work was interrupted meanwhile, which
   is final.

The states, and what moves a lease from one to another:

               renewed            trust ended
 REQUESTED ------------> HELD -------------------> LOST
       |                 ^  ^ ^                      |
       | trust ended     |  | +----- renewed (5) ----+
       v                 |  |
    UNHEARD -renewed (5)-+  +------- renewed (5) -- TAKEN

    any of these -> TAKEN: the ledger says that the lease is another attempt's
    any of these -> DEAD:  the child has died, and its end is still to be reported
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto

from supervisor.guard.child_table import ChildTable
from supervisor.job.policies import OnLeaseLost
from supervisor.job.run import RunState
from supervisor.ledger.attempt import AttemptPhase, GrantedAttempt, Work
from supervisor.ledger.run_request import CallArguments
from supervisor.times import clock

#: For this part of its `lease_ttl` a lease is trusted.
TRUSTED = 2 / 3

#: In this part of the rest, interrupted work may end by itself.
GRACEFUL = 4 / 5

RENEWALS_PER_TTL = 6

#: A delivery that is active for longer than this was granted its lease: a refused one is over.
SURELY_BEGUN_SECONDS = 2.0

#: A task that has been over for longer than this has reported its end, or never will.
SURELY_OVER_SECONDS = 5.0


class State(Enum):
    REQUESTED = auto()
    """The child asks for it; no renewal has said that its run has begun."""
    HELD = auto()
    """A renewal has said that the run has begun."""
    UNHEARD = auto()
    """Trust ended before any renewal said that the run has begun."""
    LOST = auto()
    """Trust has ended, or it had ended and the work was interrupted for it."""
    TAKEN = auto()
    """The ledger says that it is another attempt's."""
    DEAD = auto()
    """The child has died; its end is still to be reported."""


LOST_STATES = (State.UNHEARD, State.LOST, State.TAKEN)


@dataclass(slots=True)
class Lease:
    """A lease that a child of this worker asks for. All times are by `times.clock`."""

    work: Work
    token: str

    pid: int
    """The child's."""

    is_active: Callable[[], bool]
    """Whether the worker still waits for this delivery's task."""

    table: ChildTable

    call: Callable[[], CallArguments] = CallArguments
    """Returns what the run's caller gave it, for a ledger that has forgotten the run."""

    taken_at: float = field(default_factory=clock)
    state: State = State.REQUESTED
    trusted_until: float = field(init=False)
    is_interrupted: bool = False

    kill_at: float | None = None
    """When interrupted work is killed; None before the interrupt and after the kill."""

    over_since: float | None = None
    """When the heartbeat first found that the task is no longer active."""

    granted: GrantedAttempt | None = None
    """What the child was granted, once that was found in the child table."""

    at_work_at: float = 0.0
    """When its child was last seen at work, or else when it began to be."""

    ending: RunState | None = None
    """What its worker ends it for: timed out, or cancelled by a revoke."""

    unbegun: str = ""
    """Why the child gave up before the body, once it did."""

    def __post_init__(self) -> None:
        self.trust_from(self.taken_at)
        self.at_work_at = self.taken_at

    @property
    def run_id(self) -> str:
        return self.work.run_id

    @property
    def ttl(self) -> timedelta:
        return timedelta(milliseconds=self.work.rules.lease_ttl_ms)

    @property
    def key(self) -> Hashable:
        """The pid of a child, which has one lease at a time; else the token."""
        return self.pid if self.has_child else self.token

    @property
    def has_child(self) -> bool:
        """False in pools without children, where the process is this worker itself."""
        return self.pid != os.getpid()

    @property
    def renewal_seconds(self) -> float:
        return renewal_seconds_of(self.work)

    @property
    def stop_grace(self) -> timedelta:
        return timedelta(milliseconds=self.work.rules.stop_grace_ms)

    @property
    def abort_grace(self) -> timedelta:
        """How long interrupted work may take to end after trust has ended."""
        return min(self.stop_grace, self.ttl * (1 - TRUSTED) * GRACEFUL)

    @property
    def aborts_when_lost(self) -> bool:
        return self.work.rules.on_lease_lost == OnLeaseLost.ABORT

    @property
    def has_begun(self) -> bool:
        return self.state not in (State.REQUESTED, State.UNHEARD)

    @property
    def is_lost(self) -> bool:
        return self.state in LOST_STATES

    @property
    def has_surely_begun(self) -> bool:
        """Also True if no renewal has said so yet, for example because the server hangs."""
        is_due = clock() - self.taken_at > SURELY_BEGUN_SECONDS
        return (
            self.has_begun
            or self.granted is not None
            or (self.is_active() and self._may_be_running() and is_due)
        )

    @property
    def phase(self) -> AttemptPhase:
        """What a renewal tells the ledger about it."""
        # Once the end is reported nothing is known: the run may be at a later attempt.
        if not (self.has_begun or self.granted) or not self.is_active():
            return AttemptPhase.UNKNOWN
        return AttemptPhase.AT_WORK if self._may_be_running() else AttemptPhase.OVER

    @property
    def is_at_work(self) -> bool:
        return self.is_active() and self._may_be_running()

    @property
    def should_be_known(self) -> bool:
        """Whether the ledger should know the run: it is running, and its lease is not another's."""
        is_ending = self.is_lost and self.aborts_when_lost
        is_running = self.is_active() and self.has_surely_begun
        return is_running and not (is_ending or self.state is State.TAKEN)

    @property
    def deadline(self) -> float:
        """When the child must be interrupted or killed if no renewal succeeds; may be infinite."""
        if self.kill_at is not None:
            return self.kill_at
        return math.inf if self.is_lost or not self.has_surely_begun else self.trusted_until

    def note_work(self) -> None:
        """Its child lives: notes whether it is at work, and what it was granted."""
        self.granted = self.table.granted(self.pid, self.token) or self.granted
        if self.is_at_work:
            self.at_work_at = clock()

    def _may_be_running(self) -> bool:
        return self.table.is_running(self.pid, self.token)

    def is_over(self) -> bool:
        """Whether the task ended some time ago: its child has reported the end, or given up."""
        if self.is_active() or self.state is State.DEAD:
            self.over_since = None
            return False
        self.over_since = self.over_since or clock()
        return clock() - self.over_since > SURELY_OVER_SECONDS

    def trust_from(self, sent_at: float) -> None:
        self.trusted_until = trusted_until(sent_at, self.ttl)

    def renewed(self, sent_at: float) -> None:
        """A call that was sent at `sent_at` renewed it, and said that its run has begun."""
        self.trust_from(sent_at)
        if not (self.is_lost and self.is_interrupted):
            self.state = State.HELD
        elif self.state is State.UNHEARD:
            self.state = State.LOST

    def distrust(self) -> None:
        """Notes that trust has ended."""
        self.state = State.LOST if self.has_begun else State.UNHEARD


def renewal_seconds_of(work: Work) -> float:
    return work.rules.lease_ttl_ms / 1000 / RENEWALS_PER_TTL


def trusted_until(requested_at: float, ttl: timedelta) -> float:
    return requested_at + ttl.total_seconds() * TRUSTED


def is_trusted(requested_at: float, ttl: timedelta) -> bool:
    return clock() < trusted_until(requested_at, ttl)
