"""What rounds come to: the median of them, the least and the most.

Ours is compared with another's in the same round, for a machine that is busy with something else is
so for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times faster than theirs ours is, both in seconds."""
    return spread(name, [other / own for own, other in zip(ours, theirs, strict=True)])


def spread(name: str, rounds: Sequence[float]) -> dict[str, float]:
    return {name: median(rounds), f"{name}_min": min(rounds), f"{name}_max": max(rounds)}


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure that every round has."""
    names = set[str](rounds[0]).intersection(*rounds)
    return {name: median(each[name] for each in rounds) for name in rounds[0] if name in names}


def spreads(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The same with the least and the most of each."""
    figures: dict[str, float] = {}
    for name in medians(rounds):
        figures |= spread(name, [each[name] for each in rounds])
    return figures
