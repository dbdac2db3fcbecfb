"""`start_at` and `end_at`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from supervisor.times.clock import INSTANT
from supervisor.timing.protocol import Schedule
from supervisor.timing.windows import count_between


@dataclass(frozen=True, slots=True)
class Bounded:
    """The times of `schedule` from `start`, which is one if named, and before `end`."""

    schedule: Schedule
    start: datetime | None
    end: datetime | None

    def next_after(self, at: datetime) -> datetime | None:
        tick = self.schedule.next_after(self._from(at))
        return None if tick is None or (self.end and tick >= self.end) else tick

    def count(self, after: datetime, until: datetime) -> int:
        last = min(until, self.end - INSTANT) if self.end else until
        return count_between(self.schedule, self._from(after), last)

    def _from(self, at: datetime) -> datetime:
        return max(at, self.start - INSTANT) if self.start else at
