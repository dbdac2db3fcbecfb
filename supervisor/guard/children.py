"""A worker's children: which of them have died, and signals to them.

Where the system has pidfds, each child has a descriptor that becomes readable when it dies.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Iterable

from supervisor.guard import interrupts


class Children:
    """Only `wake` may be called from other threads than the heartbeat's."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def __contains__(self, pid: int) -> bool:
        return pid in self._fds

    def send(self, number: signal.Signals, pid: int) -> None:
        """As `interrupts.send`."""
        interrupts.send(number, pid, self._fds.get(pid))

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

    def dead(self) -> list[int]:
        """The pids of those that have died, without waiting."""
        ready = [key for key, _ in self._selector.select(0) if key.fileobj != self._wake_reader]
        return [key.data for key in ready]

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


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
