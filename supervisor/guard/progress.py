"""Progress and log lines of a running job, on their way from the child to the ledger.

1. The job's code only stores values in its `Report`, and takes no lock: a time limit may raise in
   its code between any two steps. The thread of the `Reporter`, one in each child, writes them.
2. The thread is started by the first run that reports something, after the fork, with a connection
   of its own that does not retry and has short time-outs. What a process that the job has forked
   reports is dropped: the thread is not there, and a lock of its parent's may never be released.
3. A report with news is written at once, and again no sooner than `INTERVAL` later, in one call.
   However often a job reports meanwhile, the last progress and the newest lines are kept.
   Lines that are captured (features/run_log) may be very many, and are bounded for themselves.
4. While the ledger is unavailable, what was taken is kept and sent again; later news is bounded.
5. When a job's code has ended, its report is closed before the end is stored or reported. The rest
   is written, or dropped after `TIMEOUT`. Nothing is published once `close` has returned.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

from supervisor.job.reports import (
    LINE_LENGTH,
    LINES_CAPTURED,
    LINES_KEPT,
    Number,
    Reported,
    ReportedLine,
    ReportedProgress,
    kept_text,
    plain_number,
)
from supervisor.ledger.runs import Reports
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError
from supervisor.times import clock

log = get_logger("supervisor.reports")

#: Seconds between two writes, before a retry while the ledger is unavailable, for the last write.
INTERVAL = 0.33
UNAVAILABLE_PAUSE = 1.0
TIMEOUT = 1.0


class Report:
    """The report of one attempt.

    wake: called when there is news and there was none before.
    """

    def __init__(
        self,
        run_id: str,
        token: str,
        wake: Callable[[Report], None],
        publish: Callable[[ReportedProgress], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.token = token
        #: Passes on progress that was written.
        self.publish = publish
        self.publishing = threading.Lock()
        #: Taken, and perhaps not written.
        self.unsent: Reported | None = None
        self.was_used = False
        self.is_over = False
        #: Gets an item once all is written.
        self.ended: SimpleQueue[None] = SimpleQueue()
        self._wake = wake
        self._has_news = False
        self._progress: tuple[Number, Number | None, str, float] | None = None
        self._taken: object = None
        self._lines: deque[tuple[int, str, float]] = deque(maxlen=LINES_KEPT)
        self._captured: deque[tuple[int, str, float]] = deque(maxlen=LINES_CAPTURED)
        self._numbers = count(1)
        self._batches = count(1)

    def progress(self, done: Number, total: Number | None, text: str) -> None:
        self._progress = (done, total, text, clock())
        if not self._has_news:
            self._note_news()

    def log(self, text: str, *, is_captured: bool = False) -> None:
        """is_captured: bounded on their own, so that many of them push out no others."""
        now, lines = clock(), self._captured if is_captured else self._lines
        for line in text.splitlines() or [""]:
            lines.append((next(self._numbers), line[:LINE_LENGTH], now))
        if not self._has_news:
            self._note_news()

    def take(self) -> Reported | None:
        """All that is new, for the one thread that writes it."""
        self._has_news = False  # before anything is taken: what comes meanwhile is news again
        progress = self._take_progress()
        lines = [lot.popleft() for lot in (self._lines, self._captured) for _ in range(len(lot))]
        if progress is None and not lines:
            return None
        # Threads of a job may log side by side.
        reported = (ReportedLine(number, kept_text(text), at) for number, text, at in sorted(lines))
        return Reported(next(self._batches), progress, tuple(reported))

    def _take_progress(self) -> ReportedProgress | None:
        latest = self._progress
        if latest is None or latest is self._taken:
            return None
        self._taken = latest
        done, total, text, at = latest
        try:
            whole = None if total is None else plain_number(total)
            return ReportedProgress(plain_number(done), whole, kept_text(text), at)
        except (TypeError, ValueError, OverflowError) as error:
            log.warning("progress not understood", run=self.run_id, error=str(error))
            return None

    def _note_news(self) -> None:
        self._has_news = self.was_used = True
        self._wake(self)


class Reporter:
    """Writes the reports of one child's runs; `connect` is called in its thread."""

    def __init__(self, connect: Callable[[], Reports]) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._fresh: SimpleQueue[Report] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reports: Reports | None = None
        self._next_turn_at = 0.0
        self._is_unavailable = False

    def open(
        self, run_id: str, token: str, publish: Callable[[ReportedProgress], None] | None = None
    ) -> Report:
        return Report(run_id, token, self._wake, publish)

    def close(self, report: Report) -> None:
        """The job's code has ended: writes the rest, within `TIMEOUT`."""
        report.is_over = True
        if not report.was_used:
            return
        self._fresh.put(report)
        with suppress(Empty):
            report.ended.get(timeout=TIMEOUT)
        try:
            wait_for_publishing(report)
        except BaseException:  # a time limit: the end is stored next, and must be the last word
            wait_for_publishing(report)
            raise

    def _wake(self, report: Report) -> None:
        if os.getpid() != self._pid:
            return
        self._fresh.put(report)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="supervisor-reporter", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:  # the loop outlives whatever one turn meets
                log.exception("reporter failed")

    def _turn(self) -> None:
        fresh = self._gather()
        self._next_turn_at = clock() + INTERVAL
        for report in fresh:
            was_over = report.is_over  # before anything is taken: then all is written
            try:
                self._write_all(report)
            finally:
                if was_over:
                    report.ended.put(None)

    def _gather(self) -> set[Report]:
        """The reports with news, once it is time to write; at once if one of them is over."""
        fresh = {self._fresh.get()}
        while not any(report.is_over for report in fresh):
            left = self._next_turn_at - clock()
            if left <= 0:
                break
            with suppress(Empty):
                fresh.add(self._fresh.get(timeout=left))
        return fresh

    def _write_all(self, report: Report) -> None:
        try:
            if report.unsent is not None:
                self._write(report, report.unsent)
            report.unsent = report.take()
            if report.unsent is not None:
                self._write(report, report.unsent)
        except RedisError as error:
            self._note_unavailable(report, error)
        else:
            self._is_unavailable = False

    def _write(self, report: Report, news: Reported) -> None:
        self._reports = self._reports or self._connect()
        was_written = self._reports.write(report.run_id, report.token, news, clock())
        report.unsent = None
        if was_written and news.progress and report.publish:
            publish(report, news.progress)

    def _note_unavailable(self, report: Report, error: RedisError) -> None:
        if not self._is_unavailable:
            log.warning("report not written", run=report.run_id, error=str(error))
        self._is_unavailable = True
        self._next_turn_at = clock() + UNAVAILABLE_PAUSE
        if not report.is_over:
            self._fresh.put(report)


def publish(report: Report, progress: ReportedProgress) -> None:
    """Publishes the progress, unless the job's code has ended: `close` waits for this."""
    with report.publishing:
        if report.is_over or report.publish is None:
            return
        try:
            report.publish(progress)
        except Exception:  # a result backend's own errors, which are no fault of the job
            report.publish = None
            log.exception("progress not published", run=report.run_id)


def wait_for_publishing(report: Report) -> None:
    with report.publishing:
        assert report.is_over
