"""What a run reports of itself: its progress, the lines that it logs, how its attempts failed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from operator import index
from typing import SupportsFloat, SupportsIndex

#: How many of the newest lines of a run's log are kept, and how many characters of each.
LINES_KEPT = 1_000
LINE_LENGTH = 1_000

#: How many of the lines that a job logs with `log: capture` are kept of each third of a second.
LINES_CAPTURED = 100

#: What a job may count with: ints and floats, and those of NumPy or `decimal`.
Number = SupportsIndex | SupportsFloat


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total`, in the unit that the job counts in, as of `at`."""

    done: int | float
    total: int | float | None
    text: str
    at: datetime

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None without a total."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a run's log."""

    id: str
    """Grows from line to line."""

    at: datetime
    attempt: int
    number: int
    """1 for the first line that the attempt logged, whether or not that line was kept; 0 for the
    ledger's own line about the attempt's end."""

    text: str
    step: str | None = None
    """The part of the run that logged it, where the run has parts."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed; `step` as in a LogLine."""

    attempt: int
    at: datetime
    traceback: str
    step: str | None = None


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """Progress as the job reported it; `at` is by the clock of `Reported`."""

    done: int | float
    total: int | float | None
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class ReportedLine:
    number: int
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Reported:
    """What a run has reported since the last write; instants are seconds of any one clock."""

    batch: int
    """Its number: a batch that may have arrived is sent again unchanged."""

    progress: ReportedProgress | None
    lines: tuple[ReportedLine, ...]


def log_place(run_id: str) -> tuple[str, str | None]:
    """The run whose log has a run's lines, and their label: a step logs to its whole run.

    ``nightly@2026-03-01T02:00:00Z~load#3`` is step ``load#3`` of what stands before the ``~``.
    """
    whole, _, step = run_id.partition("~")
    return whole, step or None


def plain_number(value: Number) -> int | float:
    """Raises TypeError, ValueError or OverflowError for anything but a finite number."""
    if isinstance(value, SupportsIndex):
        return index(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not an amount of work")
    return number


def parse_number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def kept_text(text: object) -> str:
    """Cut to LINE_LENGTH, and without lone surrogates, which Redis refuses."""
    return str(text)[:LINE_LENGTH].encode(errors="replace").decode()
