"""The last runs of a job as a bar chart, and its pace in numbers.

Colour is the outcome, height the duration, on the scale of the job's interval where runs come near
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.job.durations import Durations
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.page_reads import Trace
from supervisor.operate.words import duration
from supervisor.schedule.expectations import interval_of, next_ticks
from supervisor.web.clock import stamp

LENGTH = 24
PITCH = 7
HEIGHT = 30
LEAST_HEIGHT = 4

#: From this share of the interval on, it is the scale.
NEAR = 0.25

#: Runs in these states have not run: a small mark on the ground.
NEVER_STARTED = frozenset(
    {
        RunState.SKIPPED,
        RunState.MISSED,
        RunState.EXCLUDED,
        RunState.EXPIRED,
        RunState.WAITING,
        RunState.QUEUED,
    }
)


@dataclass(frozen=True, slots=True)
class ChartBar:
    run: str
    state: str
    x: int
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    bars: tuple[ChartBar, ...]

    limit_y: float | None
    """Where a bar would be as high as the interval is long."""

    words: str
    width: int = LENGTH * PITCH
    height: int = HEIGHT


def chart_of(traces: Sequence[Trace], interval_seconds: float | None) -> Chart:
    """`traces`: oldest first."""
    shown = traces[-LENGTH:]
    longest = max((trace.duration_seconds or 0 for trace in shown), default=0)
    is_near = interval_seconds is not None and longest >= NEAR * interval_seconds
    top = max(longest, interval_seconds or 0) if is_near else longest
    first = LENGTH - len(shown)
    return Chart(
        tuple(bar_of(trace, first + place, top) for place, trace in enumerate(shown)),
        HEIGHT * (1 - interval_seconds / top) if is_near and interval_seconds else None,
        words_of(shown),
    )


def bar_of(trace: Trace, place: int, top: float) -> ChartBar:
    height = float(LEAST_HEIGHT)
    if trace.state is RunState.RUNNING:
        height = HEIGHT / 2
    elif trace.state not in NEVER_STARTED and top:
        height = max(height, HEIGHT * (trace.duration_seconds or 0) / top)
    return ChartBar(
        run=trace.id,
        state=trace.state.value,
        x=place * PITCH,
        y=round(HEIGHT - height, 1),
        height=round(height, 1),
        title=title_of(trace),
    )


def title_of(trace: Trace) -> str:
    lasted = trace.duration_seconds
    parts = [
        f"{stamp(trace.nominal_at)} {trace.state.words}",
        f"in {duration(lasted)}" if lasted is not None and trace.state not in NEVER_STARTED else "",
        f"blocked by {trace.blocked_by}" if trace.blocked_by else "",
        trace.reason or "",
    ]
    return ", ".join(filter(None, parts))


def words_of(traces: Sequence[Trace]) -> str:
    """``18 succeeded, 5 skipped``: the chart for people who cannot see it."""
    return counted(Counter(trace.state.words for trace in traces)) or "no runs yet"


def counted(counts: Mapping[str, int]) -> str:
    """``1,018 succeeded, 1 timed out``"""
    return ", ".join(f"{count:,} {word}" for word, count in Counter(counts).most_common())


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the runs in the history took, against how far apart ticks are. Seconds."""

    median: float | None
    p95: float | None
    longest: float | None
    interval: float | None

    @property
    def load(self) -> float | None:
        """Share of the interval that the longest run took; above 1, ticks came while it ran."""
        if self.longest is None or not self.interval:
            return None
        return self.longest / self.interval

    @property
    def word(self) -> str:
        if self.load is None:
            return "unknown"
        return "over" if self.load > 1 else "near" if self.load > 0.8 else "within"


def pace_of(spec: JobSpec, durations: Durations, now: datetime) -> Pace:
    interval = interval_of(next_ticks(spec, now))
    return Pace(
        durations.quantile(0.5),
        durations.quantile(0.95),
        durations.longest,
        interval.total_seconds() if interval else None,
    )
