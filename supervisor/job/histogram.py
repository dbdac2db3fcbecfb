"""Observed durations in buckets, as Prometheus' histograms have them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts`: observations a bucket, not cumulative, one more than `bounds` (+Inf)."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_seconds: float

    @property
    def observations(self) -> int:
        return sum(self.counts)

    @property
    def longest(self) -> float | None:
        """A bound that no observation exceeded, by the buckets; None without any."""
        filled = [number for number, count in enumerate(self.counts) if count]
        if not filled:
            return None
        return self.bounds[filled[-1]] if filled[-1] < len(self.bounds) else math.inf

    def quantile(self, q: float) -> float | None:
        """Seconds below which a share of `q` lies, evenly spread within its bucket.

        As Prometheus' histogram_quantile does: what is beyond the last bound counts as that bound.
        None without observations.
        """
        below = tuple(accumulate(self.counts, initial=0))  # each bucket
        rank = q * below[-1]
        if not below[-1]:
            return None
        bucket = max(bisect_left(below, rank), bisect_right(below, 0)) - 1
        if bucket == len(self.bounds):
            return self.bounds[-1]
        lower = self.bounds[bucket - 1] if bucket else 0.0
        share = max(0.0, rank - below[bucket]) / self.counts[bucket]
        return lower + (self.bounds[bucket] - lower) * share
