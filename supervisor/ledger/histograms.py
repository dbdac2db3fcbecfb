"""How long things took, by buckets, as Prometheus counts them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from supervisor.ledger.scripts import BOUNDS


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
        """What no observation exceeded, as far as the buckets tell; None without any."""
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


#: The fields of a job's hash that hold its histograms: the buckets, and the sum in ms.
HISTOGRAM_FIELDS = {
    name: (*(f"h:{name}:{i}" for i in range(1, len(BOUNDS) + 2)), f"h:{name}:sum")
    for name in ("duration", "start_delay")
}


def histogram_of(integers: Sequence[int]) -> Histogram:
    """From the values of these fields."""
    return Histogram(BOUNDS, tuple(integers[:-1]), integers[-1] / 1000)


def histogram_from(fields: Mapping[str, str], name: str) -> Histogram:
    return histogram_of([int(fields.get(field, 0)) for field in HISTOGRAM_FIELDS[name]])
