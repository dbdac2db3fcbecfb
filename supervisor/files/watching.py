"""Notices that schedule files changed, by the system's own means, when it is asked.

Without a thread: beat asks at each tick, and files that are being written are read once they have
come to rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
from watchfiles import Change, DefaultFilter, watch

#: An editor's own files are passed over; directories are not, whatever they are called.
FILTER = DefaultFilter(ignore_dirs=())

#: Files that do not come to rest for so long are read all the same.
LONGEST_BURST_SECONDS = 1.0

log = structlog.get_logger("supervisor.watching")


class Watching:
    """What happens below `path`, which may be absent and may be exchanged for another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: Iterator[Any] | None = None
        self._watched: tuple[int, int] | None = None
        self._names = {path}
        self._has_told = False
        #: Since when there is something to be read; at first, whatever happened before.
        self._since: float | None = time.monotonic()
        #: Files change at this moment: to be asked again soon.
        self.is_restless = False

    def look_again(self) -> None:
        """As if something had changed."""
        self._since = self._since or time.monotonic()

    def has_changed(self) -> bool:
        """Once after each change, when the files have come to rest."""
        self.is_restless = self._changes_now()
        if self.is_restless:
            self.look_again()
        if self._since is None:
            return False
        if self.is_restless and time.monotonic() - self._since < LONGEST_BURST_SECONDS:
            return False
        self._since = None
        return True

    def _changes_now(self) -> bool:
        try:
            self._follow()
            # A signal that comes at this very moment is raised as KeyboardInterrupt.
            changes = next(self._changes) if self._changes else set()
            if any(
                change is Change.deleted and Path(name) in self._names for change, name in changes
            ):
                self._watched = None  # another in its place may have the same number
            return bool(changes)
        except OSError as error:  # absent, unreadable, or out of inotify watches
            if not self._has_told:
                log.warning("schedules not watched", path=str(self._path), error=str(error))
            self._has_told, self._watched = True, None
            self.look_again()  # what is not watched is read each time
            return False

    def _follow(self) -> None:
        """Watches the directory, unless it is the one that is watched already."""
        found = self._path.stat()
        if (found.st_dev, found.st_ino) == self._watched:
            return
        self._watched = None
        self._names = {self._path, self._path.absolute(), self._path.resolve()}
        self._changes = watch(
            self._path,
            watch_filter=FILTER,
            yield_on_timeout=True,
            rust_timeout=1,
            step=1,
            raise_interrupt=True,
        )
        next(self._changes)
        self._watched, self._has_told = (found.st_dev, found.st_ino), False
        self.look_again()
