"""Which changes there are below the directory of schedule files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from watchfiles import Change, DefaultFilter, watch

from supervisor.logs import get_logger

log = get_logger("supervisor.reloading")

#: Editors' temporary files are ignored; directories are not, whatever their names.
FILTER = DefaultFilter(ignore_dirs=())

#: Files that keep changing for this long are read all the same.
LONGEST_BURST_SECONDS = 1.0

#: Files that cannot be watched are read again after this.
UNWATCHED_SECONDS = 5.0


class Watching:
    """Changes below `path`, which may be absent and may be replaced by another directory.

    The kernel notices them (inotify and the like). No thread waits for them: beat asks each turn.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: Iterator[Any] | None = None
        self._watched: tuple[int, int] | None = None
        self._names = {path}
        self._has_warned = False
        self._next_look = 0.0
        #: Since when there are changes to be read; at first, whatever happened before.
        self._since: float | None = time.monotonic()
        #: Files are changing at this moment: to be asked again soon.
        self.is_changing = False

    def look_again(self) -> None:
        """Behaves as if something had changed."""
        self._since = self._since or time.monotonic()

    def has_changed(self) -> bool:
        """True once after each change, when the files have come to rest."""
        self.is_changing = self._changes_now()
        if self.is_changing:
            self.look_again()
        if self._since is None:
            return False
        if self.is_changing and time.monotonic() - self._since < LONGEST_BURST_SECONDS:
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
                self._watched = None  # another in its place may have the same inode number
            return bool(changes)
        except (OSError, RuntimeError) as error:
            # Absent, unreadable, or the kernel has no more watches (an OSError) or instances of
            # inotify (a RuntimeError of watchfiles) for this user.
            if not self._has_warned:
                facts = {"path": str(self._path), "error": str(error)}
                log.warning("schedules not watched", **facts, read_every=UNWATCHED_SECONDS)
            self._has_warned, self._watched = True, None
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + UNWATCHED_SECONDS
                self.look_again()
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
        self._watched, self._has_warned = (found.st_dev, found.st_ino), False
        self.look_again()
