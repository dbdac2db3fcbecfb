"""When the schedule files have changed, and have come to rest."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supervisor.catalog.schedule_files import SUFFIXES

#: Files that keep changing for this long are read all the same.
LONGEST_BURST_SECONDS = 1.0


class Watching:
    """Changes of the files of `path`, which may be absent and may be replaced by another directory.

    Beat asks each second, and their sizes and times are compared: a thousand files take
    milliseconds, and those of another machine or of a mount are seen like any others.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = files_of(path)
        #: Since when there are changes to be read; at first, whatever happened before.
        self._since: float | None = time.monotonic()
        #: Files are changing at this moment: to be asked again soon.
        self.is_changing = False

    def mark_changed(self) -> None:
        """Behaves as if something had changed."""
        self._since = self._since or time.monotonic()

    def has_changed(self) -> bool:
        """True once after each change, when the files have come to rest."""
        before, self._files = self._files, files_of(self._path)
        self.is_changing = self._files != before
        if self.is_changing:
            self.mark_changed()
        if self._since is None:
            return False
        if self.is_changing and time.monotonic() - self._since < LONGEST_BURST_SECONDS:
            return False
        self._since = None
        return True


def files_of(path: Path) -> frozenset[object]:
    """What differs when a file does, or whether it can be read; also for a path that is a file."""
    try:
        if not path.is_dir():
            return frozenset({state_of(path)})
        with os.scandir(path) as entries:
            return frozenset(state_of(each) for each in entries if each.name.endswith(SUFFIXES))
    except OSError as error:
        return frozenset({str(error)})


def state_of(file: Path | os.DirEntry[str]) -> tuple[object, ...]:
    try:
        state = file.stat()
    except OSError as error:  # a link to nothing
        return file.name, str(error)
    return file.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns
