"""Ours against another's, from rounds that took turns.

What is compared is two figures of the same round, for a machine that is busy with something else is
so for both; given are the median of the rounds, the least and the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times faster than theirs ours is, both in seconds."""
    found = [other / own for own, other in zip(ours, theirs, strict=True)]
    return {name: median(found), f"{name}_min": min(found), f"{name}_max": max(found)}
