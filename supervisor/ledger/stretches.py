"""The part of a job's time that is audited next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Stretch:
    """The ticks in (first_at, last_at], of which `counted` were dealt with.

    unsettled: of all the job's ticks and runs so far, those that have no outcome and are not open.
    """

    job: str
    first_at: datetime
    last_at: datetime
    counted: int
    unsettled: int
