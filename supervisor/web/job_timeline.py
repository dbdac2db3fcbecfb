"""The timeline of a job: attempts as bars, and the ticks that did not start at once.

Horizontal places are per cent of the width, so that text keeps its size on a phone; vertical ones
are pixels. The row on top has the ticks that did not start at once because they would have
overlapped; below it, runs are drawn in as many lanes as they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.job.run import Run, RunAttempt, RunState
from supervisor.operate.question import is_tick
from supervisor.operate.words import duration, reason_words
from supervisor.web.axis import Label, Window, labels_of
from supervisor.web.clock import stamp

#: Spans to choose from.
SPANS = {
    "2m": timedelta(minutes=2),
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}

#: The span is by default the shortest that shows that many runs.
ENOUGH_RUNS = 24

#: The part of the span after now: room for the mark of what waits now.
MARGIN = 0.015

TOP_HEIGHT = 26
LANE_HEIGHT = 24
BAR_HEIGHT = 16
AXIS_HEIGHT = 20

#: Per cent. A bar that is narrower cannot be seen or pointed at.
LEAST_WIDTH = 0.25

HELD_BACK = frozenset({RunState.SKIPPED, RunState.WAITING})
PASSED_OVER = frozenset({RunState.MISSED, RunState.EXCLUDED, RunState.EXPIRED})


@dataclass(frozen=True, slots=True)
class Bar:
    """An attempt, as far as it has run."""

    run: str
    state: str
    x: float
    width: float
    y: int
    title: str
    overlaps: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """A tick that did not start at once, from its time until it started, if it ever did."""

    run: str
    state: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Timeline:
    span: str
    bars: tuple[Bar, ...]
    holds: tuple[Wait, ...]
    labels: tuple[Label, ...]
    lanes: int
    words: str
    top: int = TOP_HEIGHT
    bar_height: int = BAR_HEIGHT

    @property
    def ground(self) -> int:
        return self.top + self.lanes * LANE_HEIGHT

    @property
    def height(self) -> int:
        return self.ground + AXIS_HEIGHT


def timeline_of(runs: Sequence[Run], chosen: str | None, now: datetime) -> Timeline:
    """`chosen`: one of SPANS, or none of them for the one that fits."""
    word = chosen if chosen in SPANS else fitting_span(runs, now)
    window = Window(now - SPANS[word], now + SPANS[word] * MARGIN)
    lanes = in_lanes(runs, now)
    bars = tuple(
        bar_of(run, attempt, lane, window, now)
        for run, lane in lanes
        for attempt in run.attempts
        if window.shows(attempt.started_at, attempt.finished_at or now)
    )
    holds = tuple(held for run in runs if (held := hold_of(run, window, now)))
    count = 1 + max((lane for run, lane in lanes if window.shows(*spell(run, now))), default=0)
    words = (
        f"{len(bars)} attempts, {len(holds)} ticks that waited or did not start, in the last {word}"
    )
    return Timeline(word, bars, holds, tuple(labels_of(window)), count, words)


def fitting_span(runs: Sequence[Run], now: datetime) -> str:
    ages = sorted(now - run.queued_at for run in runs)
    if not ages:
        return "1h"
    age = ages[min(len(ages), ENOUGH_RUNS) - 1]
    return next((word for word, length in SPANS.items() if length >= age), "7d")


def in_lanes(runs: Iterable[Run], now: datetime) -> list[tuple[Run, int]]:
    """Each run that has run, with the first lane that was free when it began."""
    placed: list[tuple[Run, int]] = []
    free_from: list[datetime] = []
    started = (run for run in runs if run.attempts)
    for run in sorted(started, key=lambda run: run.attempts[0].started_at):
        start, end = spell(run, now)
        lane = next((n for n, free in enumerate(free_from) if free <= start), len(free_from))
        free_from[lane : lane + 1] = [end]
        placed.append((run, lane))
    return placed


def spell(run: Run, now: datetime) -> tuple[datetime, datetime]:
    """The span from the start of a run's first attempt to the end of its last."""
    return run.attempts[0].started_at, run.attempts[-1].finished_at or now


def bar_of(run: Run, attempt: RunAttempt, lane: int, window: Window, now: datetime) -> Bar:
    end = attempt.finished_at or now
    state = RunState(attempt.outcome or run.state)
    number = f", attempt {attempt.number}" if len(run.attempts) > 1 else ""
    lasted = duration((end - attempt.started_at).total_seconds())
    reason = f", {attempt.reason}" if attempt.reason else ""
    overlap = f", overlapped with {run.overlapped_with}" if run.overlapped_with else ""
    return Bar(
        run=run.id,
        state=state.value,
        x=window.x(attempt.started_at),
        width=max(LEAST_WIDTH, window.width(attempt.started_at, end)),
        y=TOP_HEIGHT + lane * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
        title=f"{stamp(attempt.started_at)} {state.words}, {lasted}{number}{reason}{overlap}",
        overlaps=run.overlapped_with is not None,
    )


def hold_of(run: Run, window: Window, now: datetime) -> Wait | None:
    start = run.first_nominal_at or run.nominal_at
    if run.state in PASSED_OVER:
        end = run.nominal_at
    elif run.state in HELD_BACK or (run.blocked_by and run.attempts and not run.attempts_dropped):
        start = run.nominal_at if is_tick(run) else run.queued_at
        end = max(start, waited_until(run, now))
    else:
        return None
    if not window.shows(start, end):
        return None
    state = RunState.WAITING if run.attempts else run.state
    lasted = f" for {duration((end - start).total_seconds())}" if end > start else ""
    title = f"{stamp(start)} {state.words}{lasted}, {reason_words(run)}".rstrip(", ")
    return Wait(run.id, state.value, window.x(start), window.width(start, end), title)


def waited_until(run: Run, now: datetime) -> datetime:
    if run.attempts:
        return max(run.nominal_at, run.attempts[0].started_at)
    return now if run.state is RunState.WAITING else run.nominal_at
