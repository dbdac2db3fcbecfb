"""How long the runs of a job took: those that its history keeps, and all of them in buckets."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

#: Fewer runs say little about what is usual.
ENOUGH_RUNS = 5


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the runs in a job's history took."""

    seconds: tuple[float, ...] = ()
    """In order: the last attempt of each run that succeeded, failed or timed out."""

    @property
    def longest(self) -> float | None:
        return self.seconds[-1] if self.seconds else None

    @property
    def usual(self) -> float | None:
        """What almost none exceeds: p95; None of fewer than ENOUGH_RUNS."""
        return self.quantile(0.95) if len(self.seconds) >= ENOUGH_RUNS else None

    def quantile(self, q: float) -> float | None:
        """The shortest that a share of `q` does not exceed, by nearest rank; None without runs."""
        if not self.seconds:
            return None
        return self.seconds[max(0, math.ceil(q * len(self.seconds)) - 1)]

    def share_above(self, seconds: float) -> float:
        """The share of runs that took longer; 0 without runs."""
        longer = len(self.seconds) - bisect_right(self.seconds, seconds)
        return longer / len(self.seconds) if longer else 0.0


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long all runs took so far, as Prometheus counts it."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Observations in each bucket, one more than `bounds` (+Inf), not cumulative."""

    sum_seconds: float

    @property
    def observations(self) -> int:
        return sum(self.counts)
