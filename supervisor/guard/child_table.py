"""What a worker's main process and its attempts know and ask of each other without the ledger.

**The table:**

1. A child records whether it is inside a job's code. A child that has done its work and cannot
   report it, because the ledger is unavailable, must not be killed for working without a lease.
2. A child records how its work ended before it reports that. If it is killed meanwhile, for example
   for a time limit, its main process knows what to report.
3. The main process records that the worker is stopping. A child then does not report for ever.
4. A main process whose loop does not hear that a child has begun an attempt finds the child here.
5. A child records what it was granted: its main process tells a ledger that is older than that.

The table is shared memory, made before the children are forked. A child's entry is found by its
process id, and names the attempt that it is about.

**How a running job is interrupted:**

1. The main process sends the child a signal: `LEASE_LOST` or `CANCELLED`.
2. The child's handler raises LeaseLost or RunCancelled in the job's code, if that is running. They
   are BaseExceptions, so a job's ``except Exception`` does not swallow them; ``finally`` runs.
3. A child that still runs the job's code after its grace is killed, and reported by the heartbeat
   like any child that died.

The first signal is one that Unix ignores by default. The second would end a child that never began
a run, so it is sent only to one that has.

Pools of threads or greenlets, and the solo pool, have no children: the attempts of such a worker
are in `here`, and its heartbeat calls them. Their code runs beside the heartbeat, in the main
thread (solo: signalled in the same way), in a greenlet (the exception is raised when it next waits)
or in a thread, where nothing can be raised: the run has to check by itself whether it should end
(`current_run().should_end`). None of them can be killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from struct import Struct
from types import FrameType
from typing import TYPE_CHECKING, Any

from supervisor.errors import LeaseLost, RunCancelled, RunInterrupted
from supervisor.job.run import RunState
from supervisor.ledger.replies import Known

if TYPE_CHECKING:
    from supervisor.guard.attempt import Attempt

#: State, the attempt's token, a time, the owner's pid, and what is in Known. The time is when the
#: attempt asked for its lease, and once its work has ended, when that was (by `times.clock`).
ENTRY = Struct("=B32sdIQIQ")
IDLE, RUNNING = 0, 1
#: Outcomes that are reported with nothing but a reason; their states follow those above.
ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED)

ENTRIES = 1 << 16
STOPPING = ENTRIES * ENTRY.size

_table: mmap.mmap | None = None

#: This process, and its entry: asked of the system once, for a child asks several times a run.
_pid = _offset = 0


def note_own_pid() -> None:
    global _pid, _offset
    _pid = os.getpid()
    _offset = offset_of(_pid)


#: For a worker without children: its pid, and the attempts whose code runs in it, by token.
own_pid: int | None = None
here: dict[str, Attempt] = {}


def share() -> None:
    """Makes the table; in a worker's main process, before the pool forks."""
    global _table
    _table = _table or mmap.mmap(-1, STOPPING + 1)
    _table[STOPPING] = 0


def run_here() -> None:
    """For a worker without children: its attempts run in this process."""
    global own_pid
    own_pid = os.getpid()


def enter(token: str, attempt: Attempt, asked_at: float, known: Known) -> None:
    """This process enters a job's code, for the attempt with this token."""
    if _pid == own_pid:
        here[token] = attempt
    elif _table is not None:
        _table[_offset] = IDLE
        ENTRY.pack_into(_table, _offset, IDLE, token.encode(), asked_at, _pid, *known)
        _table[_offset] = RUNNING


def leave(token: str) -> None:
    """This process leaves that attempt's code."""
    here.pop(token, None)
    if _table is not None:
        _table[_offset] = IDLE


def interrupt(token: str, number: int) -> bool:
    """Asks an attempt of this process to end. Returns whether anything is raised in its code."""
    attempt = here.get(token)
    return attempt is not None and attempt.interrupt(number)


def in_the_way_of(run_id: str, lock: str) -> Iterator[Attempt]:
    """Attempts of this process beside which the run must not start.

    Those of the same run, and those that lost the same lock and go on: nothing can end them.
    """
    for attempt in list(here.values()):
        has_lost_lock = lock and lock == attempt.lock and attempt.is_without_lease()
        if attempt.run_id == run_id or has_lost_lock:
            yield attempt


def is_running(pid: int, token: str) -> bool:
    """Whether that process is inside this attempt's code; True also when it cannot be known."""
    if pid == own_pid:
        return token in here
    if _table is None:
        return True
    state, whose, _, owner, *_ = ENTRY.unpack_from(_table, offset_of(pid))
    if owner not in (0, pid):  # another process' number falls on the same entry
        return True
    return bool(state == RUNNING and whose.rstrip(b"\0") == token.encode())


def asked_at(pid: int, token: str) -> float | None:
    """When that process asked for the lease under which it is inside this attempt's code."""
    if _table is None:
        return None
    state, whose, since, *_ = ENTRY.unpack_from(_table, offset_of(pid))
    return since if state == RUNNING and whose.rstrip(b"\0") == token.encode() else None


def known(pid: int, token: str) -> Known | None:
    """What that process was granted for this attempt, if it is inside the attempt's code."""
    if pid == own_pid:
        attempt = here.get(token)
        return attempt.known if attempt else None
    if _table is None:
        return None
    state, whose, _, _, *granted = ENTRY.unpack_from(_table, offset_of(pid))
    return Known(*granted) if state == RUNNING and whose.rstrip(b"\0") == token.encode() else None


def record_end(token: str, outcome: RunState, ended_at: float) -> None:
    """Records how the attempt ended, and that its work did at `ended_at`, before it is reported."""
    if _table is None or outcome not in ENDS:
        return
    ENTRY.pack_into(_table, _offset, IDLE, token.encode(), ended_at, _pid, 0, 0, 0)
    _table[_offset] = RUNNING + 1 + ENDS.index(outcome)


def end_of(pid: int, token: str) -> tuple[RunState, float] | None:
    """How that process' attempt ended, and when its work did, if it has recorded that."""
    if _table is None:
        return None
    state, whose, ended_at, *_ = ENTRY.unpack_from(_table, offset_of(pid))
    is_own = state > RUNNING and whose.rstrip(b"\0") == token.encode()
    return (ENDS[state - RUNNING - 1], ended_at) if is_own else None


def set_stopping() -> None:
    """This worker is about to stop."""
    if _table is not None:
        _table[STOPPING] = 1


def is_stopping() -> bool:
    return _table is not None and _table[STOPPING] == 1


def offset_of(pid: int) -> int:
    return pid % ENTRIES * ENTRY.size


note_own_pid()
os.register_at_fork(after_in_child=note_own_pid)


# Signals, and what they raise.

LEASE_LOST = signal.SIGURG
CANCELLED = signal.SIGUSR2

RAISED: dict[int, type[RunInterrupted]] = {LEASE_LOST: LeaseLost, CANCELLED: RunCancelled}


def receive_interrupts(raise_in_run: Callable[[int], None]) -> None:
    """Installs the handlers in this process.

    Outside of a process' main thread none are installed, since no signal can raise anything there.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def interrupt(number: int, _: FrameType | None) -> None:
        raise_in_run(number)

    for number in RAISED:
        signal.signal(number, interrupt)


def send(number: int, pid: int, pidfd: int | None) -> None:
    """Signals the process, by its pidfd where there is one: never another with the same number."""
    with contextlib.suppress(ProcessLookupError):
        if pidfd is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)


def way_to_this_code(pending: Callable[[], BaseException | None]) -> Callable[[int], Any] | None:
    """How another thread of this process interrupts the code that calls this.

    pending: returns what is to be raised in it; called where no other code runs. Returns None if
    the code cannot be interrupted.
    """
    gevent: Any = sys.modules.get("gevent")
    greenlet = gevent and gevent.getcurrent()
    if gevent and isinstance(greenlet, gevent.Greenlet):
        loop = gevent.get_hub().loop

        def throw() -> None:
            if error := pending():
                greenlet.throw(error)

        return lambda _: loop.run_callback_threadsafe(throw)
    if threading.current_thread() is threading.main_thread():
        main = threading.main_thread().ident or 0
        return lambda number: signal.pthread_kill(main, number)
    return None
