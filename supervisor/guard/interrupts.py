"""How the heartbeat interrupts the code of a running job.

1. The main process sends the child a signal: `LEASE_LOST` or `CANCELLED`.
2. The child's handler raises LeaseLost or RunCancelled in the job's code, if that is running. They
   are BaseExceptions, so a job's ``except Exception`` does not swallow them; ``finally`` runs.
3. A child that still runs the job's code after its grace is killed, and reported by the heartbeat
   like any child that died.

The first signal is one that Unix ignores by default. The second would end a child that never began
a run, so it is sent only to one that has.

In pools without children the code runs beside the heartbeat: in the main thread (solo: signalled in
the same way), in a greenlet (the exception is raised when it next waits) or in a thread, where
nothing can be raised: the run has to check by itself whether it should end
(`current_run().should_end`). None of them can be killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from supervisor.errors import LeaseLost, RunCancelled, RunInterrupted

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
