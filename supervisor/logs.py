"""Log lines: an event word with fields; JSON for machines, readable on a terminal.

The lines of Celery, kombu and uvicorn go through the same renderer, so that every line of a process
is one JSON object, or none is.
"""

from __future__ import annotations

import logging
import os
import sys
from io import StringIO
from logging.handlers import WatchedFileHandler
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

#: Libraries that log too much, and the level from which on their lines are worth showing.
QUIET = {
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "watchfiles": logging.WARNING,
    "celery.utils.functional": logging.WARNING,
    "celery.bootsteps": logging.INFO,
}

SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


def configure(json: bool | None = None, level: str = "info", logfile: str | None = None) -> None:
    """Sends all logging of this process to stderr, or to `logfile`; may be called again.

    json: None means as SUPERVISOR_LOG_FORMAT (json or console) says, else JSON unless stderr is a
    terminal. level: the name of the lowest that is shown.
    """
    as_json = wants_json() if json is None else json
    lowest = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Lines below the level cost nothing; the processor looks at the level of each logger.
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        cache_logger_on_first_use=True,
    )
    handler = WatchedFileHandler(logfile) if logfile else logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=list(SHARED),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(json_tail() if as_json else console_tail()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(lowest)
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(quiet)


def wants_json() -> bool:
    chosen = os.environ.get("SUPERVISOR_LOG_FORMAT")
    return chosen == "json" if chosen in ("json", "console") else not sys.stderr.isatty()


def json_tail() -> tuple[Processor, ...]:
    return structlog.processors.format_exc_info, structlog.processors.JSONRenderer()


def console_tail() -> tuple[Processor, ...]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=write_traceback
    )
    return escape_texts, renderer


def escape_texts(_: Any, __: str, event: EventDict) -> EventDict:
    """A job's own texts can neither begin a line nor move the cursor."""
    return {
        key: escaped(value) if isinstance(value, str) else value for key, value in event.items()
    }


def write_traceback(stream: TextIO, error: ExcInfo) -> None:
    """Without the values of variables, which would show a job's arguments."""
    plain = StringIO()
    structlog.dev.plain_traceback(plain, error)
    stream.write("\n".join(map(escaped, plain.getvalue().split("\n"))))


def escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
