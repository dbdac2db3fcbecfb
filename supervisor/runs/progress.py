"""How far a run says it is, and the lines that it logs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from operator import index
from typing import SupportsFloat, SupportsIndex

#: Of a run's log lines the newest are kept; each is cut.
LINES_KEPT = 1_000
LINE_LENGTH = 1_000

#: What a job may count with: ints and floats, and those of NumPy or `decimal`.
Number = SupportsIndex | SupportsFloat


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total`, in whatever the job counts; `at`: when it was so."""

    done: int | float
    total: int | float | None
    text: str
    at: datetime

    @property
    def share(self) -> float | None:
        """From 0 to 1; None without a total."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None


@dataclass(frozen=True, slots=True)
class LogLine:
    """`id` grows from line to line of a log.

    number: 1 for the first line that the attempt logged, whether or not that line was kept; 0 for
    what the ledger says of the attempt's end.
    step: the part of the run that logged it, where the run has parts.
    """

    id: str
    at: datetime
    attempt: int
    number: int
    text: str
    step: str | None = None


@dataclass(frozen=True, slots=True)
class SaidProgress:
    """As the job said it; `at` is by the clock of `Said`."""

    done: int | float
    total: int | float | None
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class SaidLine:
    number: int
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Said:
    """What a run has said since it was last written down; instants are seconds of any one clock.

    A batch that may have arrived is sent again as it was: its number tells.
    """

    batch: int
    progress: SaidProgress | None
    lines: tuple[SaidLine, ...]


def log_place(run_id: str) -> tuple[str, str | None]:
    """Whose log a run's lines go to, and their label: a step writes to that of the whole run.

    ``nightly@2026-03-01T02:00:00Z/load#3`` is step ``load#3`` of what stands before the ``/``.
    """
    whole, _, step = run_id.partition("/")
    return whole, step or None


def plain_number(value: Number) -> int | float:
    """Raises TypeError, ValueError or OverflowError for what is no finite number."""
    if isinstance(value, SupportsIndex):
        return index(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no amount of work")
    return number


def parse_number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def kept_text(text: object) -> str:
    """Cut, and without half characters, which no server takes."""
    return str(text)[:LINE_LENGTH].encode(errors="replace").decode()
