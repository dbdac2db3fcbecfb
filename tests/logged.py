"""What our code logs, as events with their fields."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from structlog.testing import LogCapture
from structlog.typing import EventDict

from supervisor.logs import PROCESSORS


@contextmanager
def capture_logs() -> Iterator[list[EventDict]]:
    """As structlog's own, for loggers that do not have its configuration."""
    ours = logging.getLogger("supervisor")
    before, level, capture = PROCESSORS[:], ours.level, LogCapture()
    PROCESSORS[:] = [capture]
    ours.setLevel(logging.DEBUG)  # lines that are not shown are not made
    try:
        yield capture.entries
    finally:
        PROCESSORS[:] = before
        ours.setLevel(level)
