"""The last runs of a job as a strip of bars: colour is the outcome, height the duration.

A bar is as high as the run was long, measured by the interval of the job where runs come near it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.display.words import duration, stamp
from supervisor.ledger.glances import Trace
from supervisor.runs.run import RunState

LENGTH = 24
PITCH = 7
BAR_WIDTH = 5
HEIGHT = 30
LEAST_HEIGHT = 4

#: From this share of the interval on, durations are measured by it.
NEAR = 0.25

#: Runs that never were at work are a small mark on the ground.
NEVER_STARTED = frozenset(
    {*(RunState.SKIPPED, RunState.MISSED, RunState.EXCLUDED, RunState.EXPIRED)}
    | {RunState.WAITING, RunState.QUEUED}
)


@dataclass(frozen=True, slots=True)
class Mark:
    run: str
    state: str
    x: int
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """limit_y: where a bar would be as high as the interval is long."""

    marks: tuple[Mark, ...]
    limit_y: float | None
    words: str
    width: int = LENGTH * PITCH
    height: int = HEIGHT


def strip_of(traces: Sequence[Trace], interval_seconds: float | None) -> Strip:
    """`traces`: oldest first."""
    shown = traces[-LENGTH:]
    longest = max((trace.duration_seconds or 0 for trace in shown), default=0)
    is_near = interval_seconds is not None and longest >= NEAR * interval_seconds
    top = max(longest, interval_seconds or 0) if is_near else longest
    first = LENGTH - len(shown)
    return Strip(
        tuple(mark_of(trace, first + place, top) for place, trace in enumerate(shown)),
        HEIGHT * (1 - interval_seconds / top) if is_near and interval_seconds else None,
        words_of(shown),
    )


def mark_of(trace: Trace, place: int, top: float) -> Mark:
    height = float(LEAST_HEIGHT)
    if trace.state is RunState.RUNNING:
        height = HEIGHT / 2
    elif trace.state not in NEVER_STARTED and top:
        height = max(height, HEIGHT * (trace.duration_seconds or 0) / top)
    return Mark(
        *(trace.id, trace.state.value, place * PITCH),
        *(round(HEIGHT - height, 1), round(height, 1), title_of(trace)),
    )


def title_of(trace: Trace) -> str:
    lasted = trace.duration_seconds
    parts = [
        f"{stamp(trace.nominal_at)} {trace.state.value}",
        f"in {duration(lasted)}" if lasted is not None and trace.state not in NEVER_STARTED else "",
        f"blocked by {trace.blocked_by}" if trace.blocked_by else "",
        trace.reason or "",
    ]
    return ", ".join(filter(None, parts))


def words_of(traces: Sequence[Trace]) -> str:
    """``18 succeeded, 5 skipped``: the strip for those who do not see it."""
    counts = Counter(trace.state.value for trace in traces)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no runs yet"
