"""Ends a beat that hangs, whatever the time-outs of its calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from supervisor.logs import get_logger

log = get_logger("supervisor.beat")

#: EX_SOFTWARE of sysexits.h.
EXIT_STATUS = 70


class Watchdog(threading.Thread):
    """Ends a process that hangs, so that whatever supervises it starts it again.

    Feed it more often than every `limit_seconds`. Only seconds in which the process is awake count:
    one that was frozen, or slept with its machine, has all of its time again when it wakes up.
    """

    def __init__(
        self, limit_seconds: float, bite: Callable[[], None] = lambda: os._exit(EXIT_STATUS)
    ) -> None:
        super().__init__(name="supervisor-watchdog", daemon=True)
        self._limit = limit_seconds
        self._bite = bite
        self._hunger = 0.0
        self._stopped = threading.Event()

    def feed(self) -> None:
        self._hunger = 0.0

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        step = min(5.0, self._limit / 10)
        while not self._stopped.wait(step):
            # A step that took much longer was not a time in which the process could have worked.
            self._hunger += step
            if self._hunger > self._limit:
                log.critical("hanging process ended", seconds=self._hunger)
                self._bite()
                return
