"""`at`: a list of instants."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Instants:
    """In order, none twice."""

    instants: tuple[datetime, ...]

    def next_after(self, at: datetime) -> datetime | None:
        index = bisect_right(self.instants, at)
        return self.instants[index] if index < len(self.instants) else None

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, bisect_right(self.instants, until) - bisect_right(self.instants, after))
