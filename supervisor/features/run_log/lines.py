"""The lines of a run's code that become lines of its log, and the text of its traceback.

1. If the job has `log: capture`, the log records of its code are also lines of the run's own log. A
   handler after the app's own takes them, as the app's filters have left them, and hands them to
   the report of the attempt (progress.py), which bounds them and writes them from another thread.
   Printed text comes as records if Celery redirects it (`worker_redirect_stdouts`), and otherwise
   through `PrintedLines`.
2. It takes no lock and makes no call: a time limit may be raised in the code that logs.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import dropwhile
from traceback import StackSummary, TracebackException
from typing import Any

from supervisor.guard.attempt import Attempt
from supervisor.guard.current_run import current_attempt
from supervisor.job.policies import RunLog
from supervisor.job.reports import LINE_LENGTH

#: What Celery redirects prints to.
PRINTS = "celery.redirected"

#: Our own lines are about runs, not from their code.
OURS = "supervisor."

#: Characters of one record.
LONGEST_RECORD = 16 * LINE_LENGTH

TRACEBACKS = logging.Formatter()


class CapturedLines(logging.NullHandler):
    """A NullHandler: Celery and others ignore those when they look for an app's handlers."""

    def handle(self, record: logging.LogRecord) -> bool:
        if logging.root.handlers == [self]:
            show_as_without_handlers(record)
        attempt = capturing()
        if attempt is None or record.name.startswith(OURS):
            return False
        try:
            line = line_of(record)
        except Exception as error:  # noqa: BLE001 - of the job's own objects; the app's handlers report it
            line = f"{record.levelname} {record.name}: not readable: {type(error).__name__}"
        attempt.log(line, is_captured=True)
        return True


CAPTURED = CapturedLines(logging.INFO)


class PrintedLines:
    """A stream that passes on what is printed, and adds it to the log of the run that prints it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> Any:
        attempt = capturing()
        if attempt is not None:
            attempt.printed(str(text)[:LONGEST_RECORD])
        return self._stream.write(text)


@contextmanager
def captured(_: Any, attempt: Attempt) -> Iterator[None]:
    """Has what the job's code logs and prints be lines of its run's log, if the job says so."""
    if attempt.delivery.log == RunLog.CAPTURE:
        capture_lines()
    yield


def capturing() -> Attempt | None:
    """The attempt whose code this is, if what it logs is a part of its run's log."""
    attempt = current_attempt()
    return attempt if attempt and attempt.captures else None


def capture_lines() -> None:
    """Adds the handler to all loggers. Called by each run: an app may add loggers at any time."""
    registered = list(logging.root.manager.loggerDict.values())
    loggers = [
        each for each in registered if isinstance(each, logging.Logger) and keeps_lines(each)
    ]
    for logger in (logging.root, *loggers):
        if CAPTURED not in logger.handlers:
            logger.addHandler(CAPTURED)
    is_redirected = isinstance(getattr(sys.stdout, "logger", None), logging.Logger)
    if sys.stdout is not None and not (is_redirected or isinstance(sys.stdout, PrintedLines)):
        sys.stdout = PrintedLines(sys.stdout)


def keeps_lines(logger: logging.Logger) -> bool:
    """Whether its lines go to handlers of its own and no further."""
    handlers = (each for each in logger.handlers if not isinstance(each, logging.NullHandler))
    return not logger.propagate and any(handlers)


def show_as_without_handlers(record: logging.LogRecord) -> None:
    """What Python does with warnings where no logger has a handler: a second one ends that."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger is not logging.root:
        if logger.handlers:
            return
        logger = logger.parent
    if logging.lastResort and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)


def line_of(record: logging.LogRecord) -> str:
    """Level, logger and message; printed text unchanged."""
    event = record.msg
    text = words(event) if isinstance(event, Mapping) and not record.args else record.getMessage()
    text = text[:LONGEST_RECORD]
    if record.name != PRINTS:
        text = f"{record.levelname} {record.name}: {text}"
    if record.exc_info and record.exc_info[0]:
        text += "\n" + TRACEBACKS.formatException(record.exc_info)[-LONGEST_RECORD:]
    return text


def words(event: Mapping[str, Any]) -> str:
    """The text of a structlog event that a formatter of the app would render later."""
    fields = (f"{key}={value}" for key, value in event.items() if key != "event")
    return " ".join((str(event.get("event", "")), *fields))


# The traceback of a failed attempt.

#: Bytes. Of a longer traceback the end is kept, which has the exception.
LARGEST = 8 * 1024

#: Innermost frames of each exception.
MOST_FRAMES = 50

#: Files whose frames come before those of the task's code.
CALLERS = re.compile(r"[/\\](supervisor[/\\](guard|worker)|celery[/\\]app)[/\\]\w+\.py$")


def traceback_of(failure: BaseException, attempt: Attempt) -> str:
    return traceback_text(failure, attempt.shown)


def traceback_text(error: BaseException, hide: Callable[[str], str]) -> str:
    """The traceback from the task's own code on, with the causes, without variables.

    hide: replaces what must not be shown.
    """
    whole = TracebackException.from_exception(error, limit=-MOST_FRAMES, compact=True)
    leave_out_callers(whole)
    return end_of(hide("".join(whole.format())))


def leave_out_callers(part: TracebackException | None) -> None:
    """Leaves them out of this exception and its causes. Keeps all frames if none would be left."""
    if part is None:
        return
    own = dropwhile(lambda frame: CALLERS.search(frame.filename), part.stack)
    part.stack = StackSummary.from_list(list(own)) or part.stack
    leave_out_callers(part.__cause__)
    leave_out_callers(part.__context__)


def end_of(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= LARGEST:
        return data.decode()
    return f"({len(data) - LARGEST:,} bytes before this left out)\n" + data[-LARGEST:].decode(
        errors="ignore"
    )
