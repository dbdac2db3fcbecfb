"""Who of a worker's children has died: known at once, where the system has pidfds."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterable


class Pidfds:
    """A descriptor a child, which becomes readable when it dies. For one thread, but for `wake`."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def __contains__(self, pid: int) -> bool:
        return pid in self._fds

    def get(self, pid: int) -> int | None:
        return self._fds.get(pid)

    def wake(self) -> None:
        """Ends the present `wait`, or the next."""
        os.write(self._wake_writer, b"x")

    def wait(self, seconds: float) -> list[int]:
        """The pids of children that have died, as soon as there are any, or it is woken."""
        died = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj == self._wake_reader:
                os.read(self._wake_reader, 1024)
            else:
                died.append(key.data)
        return died

    def open(self, pids: Iterable[int]) -> list[int]:
        """From now on these are waited for as well; gives those of them that are gone already."""
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
