"""Stretches of time, in seconds of the monotonic clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Interval:
    start: float
    end: float

    @property
    def length(self) -> float:
        return max(0.0, self.end - self.start)

    def common(self, other: Interval) -> Interval:
        """While both last; of no length when they do not meet."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.end, other.end)))

    def touches(self, other: Interval) -> bool:
        return self.start <= other.end and other.start <= self.end


def without(whole: Interval, holes: Iterable[Interval]) -> list[Interval]:
    """What is left of an interval."""
    left = []
    start = whole.start
    for hole in sorted(holes):
        if hole.start > start:
            left.append(Interval(start, min(hole.start, whole.end)))
        start = max(start, hole.end)
    left.append(Interval(start, whole.end))
    return [part for part in left if part.length]


def covered(intervals: Iterable[Interval]) -> float:
    """How long at least one of them lasts."""
    total, reached = 0.0, float("-inf")
    for interval in sorted(intervals):
        total += max(0.0, interval.end - max(interval.start, reached))
        reached = max(reached, interval.end)
    return total
