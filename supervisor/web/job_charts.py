"""How long a job's runs took over the days, beside its limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from statistics import median

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.page_reads import Trace
from supervisor.operate.words import duration, span
from supervisor.schedule.expectations import interval_of, next_ticks
from supervisor.times import DAY
from supervisor.web.axis import Label, Window, labels_of
from supervisor.web.clock import stamp
from supervisor.web.strip import title_of

#: Pixels: of the chart, and of the room above its highest point.
HEIGHT = 150
ABOVE = 12

#: A limit that is farther above the longest run than this is named, and not drawn.
FAR = 1.6

#: As in durations.lua.
WORKED = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT)

#: The axis is at least so long.
SHORTEST = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A run that has ended."""

    run: str
    state: str
    x: float

    y: float
    """In pixels."""

    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A limit, or the median of a day, from one x to the other."""

    x: float
    end_x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class DurationChart:
    points: Sequence[RunPoint]
    medians: Sequence[Line]
    limits: Sequence[Line]

    beyond: Sequence[str]
    """Limits that are too far above to be drawn."""

    labels: Sequence[Label]

    scale: Sequence[Line]
    """Durations at the left."""

    words: str
    height: int = HEIGHT


def durations_of(
    spec: JobSpec, runs: Sequence[Trace], now: datetime, zone: tzinfo
) -> DurationChart | None:
    """`runs`: oldest first. None where none has ended."""
    lasting = [(run, seconds) for run in runs if (seconds := took(run)) is not None]
    if not lasting:
        return None
    first_at = lasting[0][0].started_at or now
    window = Window(min(first_at, now - SHORTEST), now)
    longest = max(seconds for _, seconds in lasting)
    limits = dict(limits_of(spec, now))
    near = {text: limit for text, limit in limits.items() if limit <= FAR * longest}
    top = max(longest, *near.values(), 0.001)

    def y(seconds: float) -> float:
        return round(HEIGHT - (HEIGHT - ABOVE) * seconds / top, 1)

    return DurationChart(
        [
            RunPoint(
                run.id,
                run.state.value,
                window.x(run.started_at or now),
                y(seconds),
                title_of(run),
            )
            for run, seconds in lasting
        ],
        [
            Line(
                window.x(start),
                window.x(min(end, now)),
                y(seconds),
                f"median {duration(seconds)} on {start:%b %d}",
            )
            for start, end, seconds in medians(lasting, zone)
        ],
        [Line(0, 100, y(limit), f"{text} {span(limit)}") for text, limit in near.items()],
        [f"{text} {span(limit)}" for text, limit in limits.items() if text not in near],
        list(labels_of(window)),
        [Line(0, 100, y(top * share), duration(top * share)) for share in (0.5, 1)],
        f"{len(lasting)} runs since {stamp(first_at)}, the longest {duration(longest)}",
    )


def took(run: Trace) -> float | None:
    """Seconds of the last attempt of a run that succeeded, failed or timed out."""
    return run.duration_seconds if run.state in WORKED else None


def limits_of(spec: JobSpec, now: datetime) -> Iterator[tuple[str, float]]:
    if interval := interval_of(next_ticks(spec, now)):
        yield "interval", interval.total_seconds()
    for key in ("max_duration", "soft_time_limit", "time_limit"):
        if limit := getattr(spec, key):
            yield key, limit.total_seconds()


def medians(
    lasting: Iterable[tuple[Trace, float]], zone: tzinfo
) -> Iterator[tuple[datetime, datetime, float]]:
    """From when until when a day is, and the median of the runs that began in it."""
    days: dict[date, list[float]] = defaultdict(list)
    for run, seconds in lasting:
        if run.started_at:
            days[run.started_at.astimezone(zone).date()].append(seconds)
    for day, some in days.items():
        start = datetime(day.year, day.month, day.day, tzinfo=zone)
        yield start, start + DAY, median(some)
