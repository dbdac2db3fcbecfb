"""Executions of one job that were at work at once, as the witness saw them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.chaos.chronicle import Window
from tools.chaos.intervals import Interval
from tools.chaos.witness import Execution, frozen_by


@dataclass(frozen=True, slots=True)
class Overlap:
    older: Execution
    newer: Execution
    since: float
    seconds: float

    excuse: Window | None = None
    """The window that took the older execution's lease, None when there was none."""


def overlaps(
    executions: Sequence[Execution], at_once: int, windows: Sequence[Window]
) -> list[Overlap]:
    """Who worked beside the newest, at any time at which more than `at_once` were at work."""
    since: dict[tuple[Execution, Execution], float] = {}
    seconds: dict[tuple[Execution, Execution], float] = defaultdict(float)
    edges = {edge for e in executions for part in e.at_work for edge in (part.start, part.end)}
    for start, end in pairwise(sorted(edges)):
        piece = Interval(start, end)
        active = [e for e in executions if any(part.common(piece).length for part in e.at_work)]
        active.sort(key=lambda execution: execution.whole)
        for older in active[:-at_once]:
            pair = older, active[-1]
            since.setdefault(pair, start)
            seconds[pair] += piece.length
    return [
        Overlap(older, newer, at, seconds[older, newer], excuse(older, newer, windows))
        for (older, newer), at in since.items()
    ]


def excuse(older: Execution, newer: Execution, windows: Sequence[Window]) -> Window | None:
    """A freeze of one of the two; a Redis that is unavailable, or a link that hangs, is none."""
    both = Interval(older.whole.start, min(older.whole.end, newer.whole.end))
    for window in windows:
        frozen = frozen_by(window, older.group) or frozen_by(window, newer.group)
        if frozen and window.interval.touches(both):
            return window
    return None
