"""What every schedule can be asked."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

#: Who has found nothing for so long does not look further: longer than any calendar's cycle of
#: leap days and weekdays.
HORIZON_YEARS = 50
HORIZON = timedelta(days=366 * HORIZON_YEARS)


class Schedule(Protocol):
    """Names instants; aware UTC in and out."""

    def next_after(self, at: datetime) -> datetime | None:
        """The first nominal time strictly after `at`; None when there is none."""
        ...


@runtime_checkable
class Counted(Schedule, Protocol):
    """One that need not go through its times to know how many they are."""

    def count(self, after: datetime, until: datetime) -> int:
        """How many nominal times lie in (after, until]."""
        ...
