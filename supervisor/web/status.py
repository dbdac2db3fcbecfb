"""What is so of a job, beside what it counts: integers of its hash, in one order."""

from __future__ import annotations

from typing import NamedTuple


class Status(NamedTuple):
    """Instants in ms since 1970; 0 for each that is not there.

    created: since when the job's counters count. loaded: since when its times are what they are.
    pause_to: the end of its last pause.
    """

    created: int
    loaded: int
    paused: int
    pause_to: int
    last_start: int
    last_success: int
    last_failure: int
    next: int
    consecutive_skips: int
    miscounted: int
    unsettled: int
    overdue: int

    @property
    def unaccounted_ticks(self) -> int:
        return abs(self.miscounted) + abs(self.unsettled) + abs(self.overdue)

    @property
    def success_due_after(self) -> int:
        """The first tick after this is to come to a success."""
        return max(self.last_success, self.loaded, 0 if self.paused else self.pause_to)


#: Of a job's hash, in this order.
FIELDS = (
    *("created", "loaded", "paused", "pause_to", "last_start", "last_success", "last_failure"),
    *("next", "consecutive_skips", "n:unaccounted", "unsettled", "overdue"),
)


def in_seconds(instant: int) -> float | None:
    """Since 1970, of one in ms; None for 0."""
    return instant / 1000 if instant else None
