"""When processes were really gone: a pidfd for each one that may work for a run.

A pool's child outlives its worker's main process for a while, so that the time of a kill says
little about the end of its work.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

#: How long a new process may go unnoticed; its death before that is dated a little late.
POLL_SECONDS = 0.1


class Coroner(threading.Thread):
    """find: gives the pids of all processes that may work for a run now."""

    def __init__(self, find: Callable[[], Iterable[int]]) -> None:
        super().__init__(name="coroner", daemon=True)
        self._find = find
        self._stopping = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._pidfds: dict[int, int] = {}
        self._deaths: dict[int, list[float]] = defaultdict(list)

    def death(self, pid: int, after: float) -> float | None:
        """When the process that lived at `after` ended; None for one that was not seen to."""
        return min((at for at in self._deaths[pid] if at >= after), default=None)

    def killed(self, pid: int) -> None:
        """A SIGKILL of our own: more exact than the moment at which this thread notices."""
        self._deaths[pid].append(time.monotonic())

    def kill_survivors(self) -> None:
        """Those that are still there, also orphans; a pidfd never means another process."""
        for pidfd in self._pidfds.values():
            for number in (signal.SIGKILL, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, number)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        next_poll = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_poll:
                self._watch(self._find())
                next_poll = time.monotonic() + POLL_SECONDS
            for key, _ in self._selector.select(max(0.0, next_poll - time.monotonic())):
                self._bury(key.data)

    def _watch(self, pids: Iterable[int]) -> None:
        for pid in pids:
            if pid in self._pidfds:
                continue
            with suppress(ProcessLookupError):
                self._pidfds[pid] = os.pidfd_open(pid)
                self._selector.register(self._pidfds[pid], selectors.EVENT_READ, pid)

    def _bury(self, pid: int) -> None:
        self._deaths[pid].append(time.monotonic())
        pidfd = self._pidfds.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
