"""How long things took, by buckets, as Prometheus counts them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
        rank, below = q * self.observations, 0
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return lower + (bound - lower) * max(0.0, rank - below) / count
            below, lower = below + count, bound
        return lower if self.observations else None


#: The fields of a job's hash that hold its histograms.
HISTOGRAM_FIELDS = {
    name: tuple(f"h:{name}:{i}" for i in range(1, len(BOUNDS) + 2))
    for name in ("duration", "start_delay")
}


def histogram_from(fields: Mapping[str, str], name: str) -> Histogram:
    return Histogram(
        bounds=BOUNDS,
        counts=tuple([int(fields.get(field, 0)) for field in HISTOGRAM_FIELDS[name]]),
        sum_seconds=int(fields.get(f"h:{name}:sum", 0)) / 1000,
    )
