"""Log lines: an event word with fields.

They go to Python's own `logging`. The app's handlers get them as text, with the fields in `data` of
the record, as in Celery's records. A process that is ours, or is asked to, renders all of its
lines, including those of Celery, kombu and uvicorn: as JSON objects, or readable on a terminal.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from logging.handlers import WatchedFileHandler
from typing import Any, TextIO

import click
import structlog
from structlog.typing import EventDict, Processor

LOG_FORMAT = "SUPERVISOR_LOG_FORMAT"

#: Libraries that log too much, and the level from which on their lines are worth showing.
QUIET = {
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "celery.utils.functional": logging.WARNING,
    "celery.bootsteps": logging.INFO,
}

#: The level and the log event of each word by which the ledger says what it has made of a run whose
#: turn had come, or whose worker has not reported its end.
RUN_EVENTS = {
    "due": (logging.INFO, "run due"),
    "requeued": (logging.INFO, "run requeued"),
    "skipped": (logging.WARNING, "run skipped"),
    "waiting": (logging.INFO, "run waiting"),
    "promoted": (logging.INFO, "run promoted"),
    "expired": (logging.WARNING, "run expired"),
    "rescued": (logging.WARNING, "run rescued"),
    "lost": (logging.ERROR, "run lost"),
    "cancelled": (logging.INFO, "run ended"),
    "replaced": (logging.INFO, "run ended"),
    "timed_out": (logging.WARNING, "run ended"),
    "ended": (logging.INFO, "run ended"),
    "failed": (logging.ERROR, "run cannot be rescued"),
    "reasserted": (logging.INFO, "lease reasserted"),
    "prolonged": (logging.INFO, "run held back"),
}

#: Attributes of the records that a run's code logs, by their names in our own lines.
RUN_FIELDS = {name: f"supervisor_{name}" for name in ("job", "run", "attempt", "step")}


class RunFilter(logging.Filter):
    """Makes fields such as ``%(supervisor_run)s`` empty in log records outside of runs.

    Add it to handlers whose format contains such a field.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        for attribute in RUN_FIELDS.values():
            vars(record).setdefault(attribute, "")
        return True


def fill_formats(logger: Any = None, format: Any = None, **_: Any) -> None:
    """Adds a RunFilter to Celery's handlers if the app's format has fields of runs."""
    if RUN_FIELDS["run"].removesuffix("run") in str(format):
        for handler in logger.handlers:
            handler.addFilter(RunFilter())


def name_run(_: Any, __: str, event: EventDict) -> EventDict:
    """Adds the run whose code logged the line, under the names that our own lines have."""
    record = vars(event["_record"])
    for name, attribute in RUN_FIELDS.items():
        if attribute in record:
            event.setdefault(name, record[attribute])
    return event


JSON_TAIL = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())

SHARED: tuple[Processor, ...] = (
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


def as_text(_: Any, __: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Renders a line for handlers that know nothing of fields."""
    kept = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    words = [event.pop("event"), *(f"{key}={value!r}" for key, value in event.items())]
    return (" ".join(words),), {**kept, "extra": {"data": event}}


#: Every line of ours goes through these. The list is changed in place, because each logger holds
#: it. The app's own configuration of structlog is neither used nor changed.
PROCESSORS: list[Any] = [structlog.stdlib.filter_by_level, as_text]


class Logger(structlog.make_filtering_bound_logger(logging.NOTSET)):  # type: ignore[misc]
    """A line of each run that is not shown costs next to nothing."""

    def info(self, event: str, *args: Any, **fields: Any) -> Any:
        if not self._logger.isEnabledFor(logging.INFO):
            return None
        return super().info(event, *args, **fields)


def get_logger(name: str) -> Any:
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=PROCESSORS,
        wrapper_class=Logger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )


def configure(
    json: bool | None = None,
    level: str = "info",
    logfile: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Sends all logging of this process to `stream`, by default stderr, or to `logfile`; may be
    called again.

    json: by default as SUPERVISOR_LOG_FORMAT (json or console) says, or else JSON unless stderr is
    a terminal. level: the name of the lowest level that is shown.
    """
    as_json = wants_json() if json is None else json
    lowest = logging.getLevelNamesMapping()[level.upper()]
    PROCESSORS[:] = [
        structlog.stdlib.filter_by_level,
        *SHARED,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ]
    stream = stream or sys.stderr
    handler = WatchedFileHandler(logfile) if logfile else logging.StreamHandler(stream)
    tail = JSON_TAIL if as_json else console_tail(not logfile and stream.isatty())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[name_run, *SHARED],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(lowest)
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(quiet)


def wants_json() -> bool:
    return os.environ[LOG_FORMAT] == "json" if is_chosen() else not sys.stderr.isatty()


def is_chosen() -> bool:
    return os.environ.get(LOG_FORMAT) in ("json", "console")


def console_tail(is_terminal: bool) -> tuple[Processor, ...]:
    """Lines for a terminal, or for a file, which says the day and the logger too."""

    def render(_: Any, __: str, event: EventDict) -> str:
        if is_terminal:
            return "\n".join(words_of(event, f"{time_of(event)} {event['level']:<8}"))
        start = f"{event['timestamp']} {event['level']:<8} {escaped(event['logger'])}:"
        return click.unstyle("\n".join(words_of(event, start)))

    return structlog.processors.format_exc_info, render


# A line for people.


#: Fields that have a place of their own in it, or none.
PLACED = ("timestamp", "level", "event", "logger", "run", "job", "exception", "stack")

COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}

#: How many items of a list are shown.
MOST_SHOWN = 3


def words_of(event: Mapping[str, Any], start: str) -> Iterator[str]:
    """A start such as ``14:02:31``, ``run skipped nightly reason=overlap``, and a traceback."""
    about = event.get("run") or event.get("job")
    others = {name: short(event[name]) for name in event if name not in PLACED}
    words, colour = escaped(str(event["event"])), COLOURS.get(str(event.get("level")))
    words = click.style(words, fg=colour) if colour else words
    fields = [f"{name}={escaped(value)}" for name, value in others.items() if value]
    yield " ".join(filter(None, [start, words, escaped(str(about or "")), *fields]))
    for name in ("exception", "stack"):
        yield from (f"  {escaped(line)}" for line in str(event.get(name) or "").splitlines())


def short(value: Any) -> str:
    """``a, b, c and 2 more`` for a list; an empty text for an empty value."""
    if value in (None, [], {}):
        return ""
    if not isinstance(value, list):
        return str(value)
    more = len(value) - MOST_SHOWN
    if isinstance(value[0], dict):
        return str(len(value))
    shown = ", ".join(map(str, value[:MOST_SHOWN]))
    return f"{shown} and {more} more" if more > 0 else shown


def time_of(event: Mapping[str, Any]) -> str:
    """The time of day in this machine's zone."""
    try:
        return f"{datetime.fromisoformat(str(event.get('timestamp'))).astimezone():%H:%M:%S}"
    except ValueError:
        return ""


def escaped(text: str) -> str:
    """A job's text cannot begin a line or move the cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
