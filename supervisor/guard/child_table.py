"""What a worker's main process and its attempts know and ask of each other without the ledger.

1. A child records whether it is inside a job's code. A child that has done its work and cannot
   report it, because the ledger is unavailable, must not be killed for working without a lease.
2. A child records how its work ended before it reports that. If it is killed meanwhile, for example
   for a time limit, its main process knows what to report.
3. The main process records that the worker is stopping. A child then does not report for ever.
4. A main process whose loop does not hear that a child has begun an attempt finds the child here.
5. A child records what it was granted: its main process tells a ledger that is older than that.

The table is shared memory, made before the children are forked. A child's entry is found by its
process id, and names the attempt that it is about.

Pools of threads or greenlets, and the solo pool, have no children: the attempts of such a worker
run in its own process, and are kept in `here`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from supervisor.job.run import RunState
from supervisor.ledger.attempt import GrantedAttempt

if TYPE_CHECKING:
    from supervisor.guard.attempt import Attempt

#: State, the token of the attempt, a time, the pid of its owner, and what it was granted. The time
#: is when it asked for its lease, and once its work has ended, when that was (by `times.clock`).
ENTRY = Struct("=B32sdIQIQ")
IDLE, RUNNING = 0, 1
#: Outcomes that are reported with nothing but a reason; their states follow those above.
ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED)

ENTRIES = 1 << 16
STOPPING = ENTRIES * ENTRY.size


class ChildEntry(NamedTuple):
    state: int
    at: float
    granted: GrantedAttempt


class ChildTable:
    """is_shared: False for code that runs outside of a worker, of which nothing is known."""

    def __init__(self, *, is_shared: bool = True) -> None:
        self._memory = mmap.mmap(-1, STOPPING + 1) if is_shared else None
        #: Of a worker without children: its pid, and the attempts whose code runs in it, by token.
        self.own_pid: int | None = None
        self.here: dict[str, Attempt] = {}

    def run_here(self) -> None:
        """For a worker without children: its attempts run in this process."""
        self.own_pid = os.getpid()

    # Called by the process that runs the job's code.

    def enter(
        self, token: str, attempt: Attempt, requested_at: float, granted: GrantedAttempt
    ) -> None:
        """This process enters a job's code, for the attempt with this token."""
        if os.getpid() == self.own_pid:
            self.here[token] = attempt
        else:
            self._write(RUNNING, token, requested_at, granted)

    def leave(self, token: str) -> None:
        """This process leaves that attempt's code."""
        self.here.pop(token, None)
        if self._memory is not None:
            self._memory[offset_of(os.getpid())] = IDLE

    def record_end(self, token: str, outcome: RunState, ended_at: float) -> None:
        """Records how the attempt ended, and that its work did at `ended_at`, before the report."""
        if outcome in ENDS:
            self._write(RUNNING + 1 + ENDS.index(outcome), token, ended_at, GrantedAttempt(0, 0, 0))

    def _write(self, state: int, token: str, at: float, granted: GrantedAttempt) -> None:
        if self._memory is None:
            return
        pid = os.getpid()
        offset = offset_of(pid)
        self._memory[offset] = IDLE  # a reader takes nothing from it meanwhile
        ENTRY.pack_into(self._memory, offset, IDLE, token.encode(), at, pid, *granted)
        self._memory[offset] = state

    def in_the_way_of(self, run_id: str, lock: str) -> Iterator[Attempt]:
        """Attempts of this process beside which the run must not start.

        Those of the same run, and those that lost the same lock and go on: nothing can end them.
        """
        for attempt in list(self.here.values()):
            has_lost_lock = lock and lock == attempt.lock and attempt.is_without_lease()
            if attempt.run_id == run_id or has_lost_lock:
                yield attempt

    @property
    def is_stopping(self) -> bool:
        """Whether this worker is about to stop."""
        return self._memory is not None and self._memory[STOPPING] == 1

    # Called by the main process.

    def set_stopping(self, value: bool) -> None:
        if self._memory is not None:
            self._memory[STOPPING] = value

    def interrupt(self, token: str, number: int) -> bool:
        """Asks an attempt of this process to end. Returns whether its code is interrupted."""
        attempt = self.here.get(token)
        return attempt is not None and attempt.interrupt(number)

    def is_running(self, pid: int, token: str) -> bool:
        """Whether that process is inside this attempt's code; True if it cannot be known."""
        if pid == self.own_pid:
            return token in self.here
        if self._memory is None:
            return True
        state, whose, _, owner, *_ = ENTRY.unpack_from(self._memory, offset_of(pid))
        if owner not in (0, pid):  # another process' number falls on the same entry
            return True
        return bool(state == RUNNING and whose.rstrip(b"\0") == token.encode())

    def requested_at(self, pid: int, token: str) -> float | None:
        """When that process asked for the lease under which it is inside this attempt's code."""
        entry = self._entry(pid, token)
        return entry.at if entry and entry.state == RUNNING else None

    def granted(self, pid: int, token: str) -> GrantedAttempt | None:
        """What that process was granted for this attempt, if it is inside the attempt's code."""
        if pid == self.own_pid:
            attempt = self.here.get(token)
            return attempt.granted if attempt else None
        entry = self._entry(pid, token)
        return entry.granted if entry and entry.state == RUNNING else None

    def end_of(self, pid: int, token: str) -> tuple[RunState, float] | None:
        """How that process' attempt ended, and when its work did, if it has recorded that."""
        entry = self._entry(pid, token)
        if entry is None or entry.state <= RUNNING:
            return None
        return ENDS[entry.state - RUNNING - 1], entry.at

    def _entry(self, pid: int, token: str) -> ChildEntry | None:
        if self._memory is None:
            return None
        state, whose, at, _, *granted = ENTRY.unpack_from(self._memory, offset_of(pid))
        return (
            ChildEntry(state, at, GrantedAttempt(*granted))
            if whose.rstrip(b"\0") == token.encode()
            else None
        )


def offset_of(pid: int) -> int:
    return pid % ENTRIES * ENTRY.size
