"""A job's runs over the days: how long they took, beside its limits, and how they ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from statistics import median

from supervisor.job.run import FAILURES, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.page_reads import Trace
from supervisor.operate.words import duration, span
from supervisor.schedule.expectations import interval_of, next_ticks
from supervisor.times import DAY
from supervisor.web.axis import Label, Window, labels_of
from supervisor.web.clock import stamp
from supervisor.web.strip import counted, title_of

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


# Outcomes by day and hour.

#: What an hour is shown as, with a sign: not by colour alone.
SIGNS = {"failed": "x", "missed": "?", "skipped": "-", "succeeded": "", "running": "..."}

#: Days that are shown; a backfill may be for a time long ago.
MOST_DAYS = 9


@dataclass(frozen=True, slots=True)
class Hour:
    word: str
    """Of the worst outcome, a key of SIGNS; empty where nothing was due."""

    sign: str
    title: str


@dataclass(frozen=True, slots=True)
class DayOfRuns:
    date: date
    hours: Sequence[Hour]


@dataclass(frozen=True, slots=True)
class DayMap:
    days: Sequence[DayOfRuns]
    """The newest first."""

    since: datetime
    """When the history begins."""

    is_full: bool
    """As many runs are kept as may be, so that older ones were dropped."""


def days_of(spec: JobSpec, runs: Sequence[Trace], now: datetime, zone: tzinfo) -> DayMap | None:
    """`runs`: all that are kept, oldest first. None without any."""
    times = [(at, run) for run in runs if (at := run.nominal_at)]
    if not times:
        return None
    hours: dict[tuple[date, int], list[Trace]] = defaultdict(list)
    for at, run in times:
        local = at.astimezone(zone)
        hours[local.date(), local.hour].append(run)
    last, since = now.astimezone(zone).date(), min(at for at, _ in times)
    number = (last - since.astimezone(zone).date()).days + 1
    return DayMap(
        [
            DayOfRuns(day, [hour_of(hours.get((day, hour), ()), day, hour) for hour in range(24)])
            for day in (last - DAY * back for back in range(min(number, MOST_DAYS)))
        ],
        since,
        len(runs) >= spec.history,
    )


def hour_of(runs: Sequence[Trace], day: date, hour: int) -> Hour:
    if not runs:
        return Hour("", "", "")
    counts = Counter(run.state for run in runs)
    word = word_of(counts)
    words = counted({state.words: n for state, n in counts.items()})
    return Hour(word, SIGNS[word], f"{day:%b %d} {hour:02}:00: {words}")


def word_of(counts: Counter[RunState]) -> str:
    if any(counts[state] for state in FAILURES):
        return "failed"
    if counts[RunState.MISSED]:
        return "missed"
    if counts[RunState.SUCCEEDED]:
        return "succeeded" if not counts[RunState.SKIPPED] else "skipped"
    return "running" if any(state.is_open for state in counts) else "skipped"
