"""How a running job is interrupted, from its worker's main process.

1. The main process sends the child a signal: `LEASE_LOST` or `CANCELLED`.
2. The child's handler raises LeaseLost or RunCancelled in the job's code, if that is running. They
   are no Exceptions: a job's ``except Exception`` does not swallow them; ``finally`` runs.
3. A child that still runs the job's code after its grace is killed, and reported by the heartbeat
   like any child that died.

The first signal is one that Unix ignores by default; the second would end a child that never began
a run, which is never sent it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from supervisor.errors import LeaseLost, RunCancelled, RunInterrupted

LEASE_LOST = signal.SIGURG
CANCELLED = signal.SIGUSR2

RAISED: dict[int, type[RunInterrupted]] = {LEASE_LOST: LeaseLost, CANCELLED: RunCancelled}


def receive_interrupts(running_run: Callable[[], str | None]) -> None:
    """Installs the handlers in this process; `running_run` names the run whose code is running.

    Outside of a process' main thread nothing can be raised by a signal: nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def interrupt(number: int, _: FrameType | None) -> None:
        run_id = running_run()
        if run_id is not None:
            raise RAISED[number](run_id)

    for number in RAISED:
        signal.signal(number, interrupt)


def send(number: int, pid: int, pidfd: int | None) -> bool:
    """Signals the process, by its pidfd where there is one: never another with the same number.

    False for this process where no handler is installed, as in a pool of threads: it would end the
    worker, with all of its runs.
    """
    if pid == os.getpid() and signal.getsignal(number) is signal.SIG_DFL:
        return False
    with contextlib.suppress(ProcessLookupError):
        if pidfd is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
    return True
