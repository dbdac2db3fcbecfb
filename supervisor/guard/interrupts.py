"""How a running job is interrupted, from its worker's main process.

1. The main process sends the child a signal: `LEASE_LOST` or `CANCELLED`.
2. The child's handler raises LeaseLost or RunCancelled in the job's code, if that is running. They
   are no Exceptions: a job's ``except Exception`` does not swallow them; ``finally`` runs.
3. A child that still runs the job's code after its grace is killed, and reported by the heartbeat
   like any child that died.

The first signal is one that Unix ignores by default; the second would end a child that never began
a run, which is never sent it.

In a pool without children the code runs beside the heartbeat, in the main thread (solo: signalled
likewise), in a greenlet (raised when it next waits) or in a thread, where nothing can be raised: a
run sees there by itself that it is asked to end (`current_run().should_end`). None can be killed.
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

    Outside of a process' main thread nothing can be raised by a signal: nothing is installed.
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

    pending: what is to be raised in it now, asked for where nothing else runs. None: not at all.
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
