"""How the heartbeat notices the death of a child, and interrupts the code of a running job.

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

import os
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

from supervisor.errors import LeaseLost, RunCancelled, RunInterrupted

LEASE_LOST = signal.SIGURG
CANCELLED = signal.SIGUSR2

RAISED: dict[int, type[RunInterrupted]] = {LEASE_LOST: LeaseLost, CANCELLED: RunCancelled}


# The main process' side.


class Children:
    """A worker's children: which of them have died, and signals to them.

    Where the system has pidfds, each child has a descriptor that becomes readable when it dies.
    Only `wake` may be called from other threads than the heartbeat's.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def __contains__(self, pid: int) -> bool:
        return pid in self._fds

    def send(self, number: signal.Signals, pid: int) -> None:
        """By its pidfd where there is one: never another process with the same number."""
        with suppress(ProcessLookupError):
            if pid in self._fds and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self._fds[pid], number)
            else:
                os.kill(pid, number)

    def wake(self) -> None:
        """Ends the current call of `wait`, or else the next one."""
        os.write(self._wake_writer, b"x")

    def wait(self, seconds: float) -> list[int]:
        """Waits until children have died or `wake` is called; returns the pids of the dead."""
        died = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj == self._wake_reader:
                os.read(self._wake_reader, 1024)
            else:
                died.append(key.data)
        return died

    def open(self, pids: Iterable[int]) -> list[int]:
        """Waits for these children too from now on. Returns those that are gone already."""
        gone: list[int] = []
        if not hasattr(os, "pidfd_open"):
            return gone
        for pid in set(pids) - self._fds.keys():
            try:
                self._fds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                gone.append(pid)
            else:
                self._selector.register(self._fds[pid], selectors.EVENT_READ, pid)
        return gone

    def close(self, pid: int) -> None:
        pidfd = self._fds.pop(pid, None)
        if pidfd is not None:
            self._selector.unregister(pidfd)
            os.close(pidfd)


def is_alive(pid: int) -> bool:
    """A child that has died, and that its pool has not waited for yet, is a zombie: not alive."""
    with suppress(ChildProcessError, AttributeError):  # no child of ours; or macOS without waitid
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


# The side of the job's code.


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
