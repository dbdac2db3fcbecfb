"""What a run at work has said and nobody has written down yet: its progress and its log lines.

The job's code only stores values here; the reporter's thread (reporter.py) takes them. The job's
side takes no lock: a time limit may raise in its code between any two steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from threading import Lock

import structlog

from supervisor.runs.progress import (
    LINE_LENGTH,
    LINES_KEPT,
    Number,
    Said,
    SaidLine,
    SaidProgress,
    kept_text,
    plain_number,
)

#: Seconds that nobody sets: what is written down is how long ago something was said.
clock = time.monotonic

log = structlog.get_logger("supervisor.reports")


class Report:
    """The report of one attempt.

    wake: called when there is news and was none. publish: tells others of a progress that was
    written. unsent: taken, and perhaps not written. ended: gets a word once all is written.
    """

    def __init__(
        self,
        run_id: str,
        token: str,
        wake: Callable[[Report], None],
        publish: Callable[[SaidProgress], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.token = token
        self.publish = publish
        self.publishing = Lock()
        self.unsent: Said | None = None
        self.was_used = False
        self.is_over = False
        self.ended: SimpleQueue[None] = SimpleQueue()
        self._wake = wake
        self._has_news = False
        self._progress: tuple[Number, Number | None, str, float] | None = None
        self._taken: object = None
        self._lines: deque[tuple[int, str, float]] = deque(maxlen=LINES_KEPT)
        self._numbers = count(1)
        self._batches = count(1)

    def progress(self, done: Number, total: Number | None, text: str) -> None:
        self._progress = (done, total, text, clock())
        if not self._has_news:
            self._tell()

    def log(self, text: str) -> None:
        now = clock()
        for line in text.splitlines() or [""]:
            self._lines.append((next(self._numbers), line[:LINE_LENGTH], now))
        if not self._has_news:
            self._tell()

    def take(self) -> Said | None:
        """All that is new, for the one thread that writes it."""
        self._has_news = False  # before anything is taken: what comes meanwhile is news again
        progress = self._take_progress()
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if progress is None and not lines:
            return None
        # Threads of a job may log side by side.
        said = (SaidLine(number, kept_text(text), at) for number, text, at in sorted(lines))
        return Said(next(self._batches), progress, tuple(said))

    def _take_progress(self) -> SaidProgress | None:
        latest = self._progress
        if latest is None or latest is self._taken:
            return None
        self._taken = latest
        done, total, text, at = latest
        try:
            whole = None if total is None else plain_number(total)
            return SaidProgress(plain_number(done), whole, kept_text(text), at)
        except (TypeError, ValueError, OverflowError) as error:
            log.warning("progress not understood", run=self.run_id, error=str(error))
            return None

    def _tell(self) -> None:
        self._has_news = self.was_used = True
        self._wake(self)
