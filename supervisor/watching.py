"""Notices that schedule files changed, within a fraction of a second, by the system's own means."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog
from watchfiles import watch

#: How soon a directory that was absent or was replaced is looked for again, in seconds.
RETRY_SECONDS = 1.0

log = structlog.get_logger("supervisor.watching")


class Watching(threading.Thread):
    """Sets `changed` after each change below `path`; the reader clears it."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="supervisor-watching", daemon=True)
        self.path = path
        self.changed = threading.Event()
        self._stop_event = threading.Event()

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        told = False
        while not self._stop_event.is_set():
            self.changed.set()  # whatever happened while nobody watched
            try:
                for _ in watch(
                    self.path, stop_event=self._stop_event, debounce=200, raise_interrupt=False
                ):
                    self.changed.set()
                    told = False
            except OSError as error:  # absent, unreadable, or out of inotify watches
                if not told:
                    log.warning("schedules not watched", path=str(self.path), error=str(error))
                told = True
            self._stop_event.wait(RETRY_SECONDS)
