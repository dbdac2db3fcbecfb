"""The part of a job's time that is audited next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit made of a stretch.

    wrong: ticks that were counted twice or not at all. overdue: ticks after it that nobody has
    dealt with yet. finding: what is to be remembered of it, if anything is wrong.
    """

    stretch: Stretch
    wrong: int
    overdue: int
    finding: Mapping[str, Any] | None
