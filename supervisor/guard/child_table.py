"""What a worker's main process and its children tell each other where the ledger cannot help.

1. A child says whether it is inside a job's code. One that has done its work and cannot report it,
   because the ledger is away, must not be killed as one that works without a lease.
2. It says how the work ended when it cannot report that. Should it be killed meanwhile, by a time
   limit say, its main process knows what to report in its place.
3. The main process says that the worker is told to stop: then a child does not insist for ever.

The table is memory that they share: it is made before the children are forked. A child's entry is
found by its process id, and names the attempt that it is about.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from supervisor.job.run import RunState

#: State; of the attempt its token, and when it ended, by the clock of elapsed.py.
ENTRY = Struct("=B32sd")
IDLE, AT_WORK = 0, 1
#: Outcomes that are reported with nothing but a reason; their states follow those above.
ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED)

ENTRIES = 1 << 16
STOPPING = ENTRIES * ENTRY.size

_table: mmap.mmap | None = None


def share() -> None:
    """Makes the table; in a worker's main process, before the pool forks."""
    global _table
    _table = _table or mmap.mmap(-1, STOPPING + 1)
    _table[STOPPING] = 0


def tell(token: str | None) -> None:
    """This process enters a job's code, for the attempt with this token; None: it leaves it."""
    if _table is None:
        return
    place = place_of(os.getpid())
    _table[place] = IDLE
    if token is not None:
        ENTRY.pack_into(_table, place, IDLE, token.encode(), 0.0)
        _table[place] = AT_WORK


def is_at_work(pid: int, token: str) -> bool:
    """Whether that process is, for this attempt; True also when it cannot be known."""
    if _table is None:
        return True
    state, whose, _ = ENTRY.unpack_from(_table, place_of(pid))
    return bool(state == AT_WORK and whose.rstrip(b"\0") == token.encode())


def tell_end(token: str, outcome: RunState, ended_at: float) -> None:
    """This process has yet to report that its attempt ended so, and that its work did then."""
    if _table is None or outcome not in ENDS:
        return
    place = place_of(os.getpid())
    ENTRY.pack_into(_table, place, IDLE, token.encode(), ended_at)
    _table[place] = AT_WORK + 1 + ENDS.index(outcome)


def end_of(pid: int, token: str) -> tuple[RunState, float] | None:
    """How that process' attempt ended, and when its work did, if it said so."""
    if _table is None:
        return None
    state, whose, ended_at = ENTRY.unpack_from(_table, place_of(pid))
    is_own = state > AT_WORK and whose.rstrip(b"\0") == token.encode()
    return (ENDS[state - AT_WORK - 1], ended_at) if is_own else None


def tell_stopping() -> None:
    """This worker is told to stop."""
    if _table is not None:
        _table[STOPPING] = 1


def is_stopping() -> bool:
    return _table is not None and _table[STOPPING] == 1


def place_of(pid: int) -> int:
    return pid % ENTRIES * ENTRY.size
