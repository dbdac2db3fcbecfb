"""What our code logs, as events with their fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from structlog.testing import LogCapture
from structlog.typing import EventDict

from supervisor.logs import PROCESSORS


@contextmanager
def capture_logs() -> Iterator[list[EventDict]]:
    """As structlog's own, for loggers that do not have its configuration."""
    before, capture = PROCESSORS[:], LogCapture()
    PROCESSORS[:] = [capture]
    try:
        yield capture.entries
    finally:
        PROCESSORS[:] = before
