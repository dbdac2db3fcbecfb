"""The timeline of a job: attempts as bars, and the ticks that did not start at once.

Horizontal places are per cent of the width, so that text keeps its size on a phone; vertical ones
are pixels. The row on top has the ticks that did not start at once because they would have
overlapped; below it, runs are drawn in as many lanes as they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from supervisor.features.following.store import Followers
from supervisor.job.run import Attempt, Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import JobRecord
from supervisor.operate.words import duration, reason_words, stamp

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

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

STEPS = (
    *(timedelta(seconds=s) for s in (15, 30)),
    *(timedelta(minutes=m) for m in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=h) for h in (1, 2, 3, 6, 12, 24)),
)
MOST_LABELS = 8

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
class Hold:
    """A tick that did not start at once, from its time until it started, if it ever did."""

    run: str
    state: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    span: str
    bars: tuple[Bar, ...]
    holds: tuple[Hold, ...]
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


@dataclass(frozen=True, slots=True)
class Window:
    start: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        share = (moment - self.start) / (self.end - self.start)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def width(self, start: datetime, end: datetime) -> float:
        return round(max(0.0, self.x(end) - self.x(start)), 3)

    def shows(self, start: datetime, end: datetime) -> bool:
        return end >= self.start and start <= self.end


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
    wanted = ages[min(len(ages), ENOUGH_RUNS) - 1]
    return next((word for word, length in SPANS.items() if length >= wanted), "7d")


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


def bar_of(run: Run, attempt: Attempt, lane: int, window: Window, now: datetime) -> Bar:
    end = attempt.finished_at or now
    state = attempt.outcome or run.state.value
    number = f", attempt {attempt.number}" if len(run.attempts) > 1 else ""
    lasted = duration((end - attempt.started_at).total_seconds())
    reason = f", {attempt.reason}" if attempt.reason else ""
    overlap = f", overlapped with {run.overlapped_with}" if run.overlapped_with else ""
    return Bar(
        run=run.id,
        state=state,
        x=window.x(attempt.started_at),
        width=max(LEAST_WIDTH, window.width(attempt.started_at, end)),
        y=TOP_HEIGHT + lane * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
        title=f"{stamp(attempt.started_at)} {state}, {lasted}{number}{reason}{overlap}",
        overlaps=run.overlapped_with is not None,
    )


def hold_of(run: Run, window: Window, now: datetime) -> Hold | None:
    start = run.first_nominal_at or run.nominal_at
    if run.state in PASSED_OVER:
        end = run.nominal_at
    elif run.state in HELD_BACK or (run.blocked_by and run.attempts and not run.attempts_dropped):
        start = run.nominal_at
        end = waited_until(run, now)
    else:
        return None
    if not window.shows(start, end):
        return None
    state = RunState.WAITING if run.attempts else run.state
    lasted = f" for {duration((end - start).total_seconds())}" if end > start else ""
    title = f"{stamp(start)} {state}{lasted}, {reason_words(run)}".rstrip(", ")
    return Hold(run.id, state.value, window.x(start), window.width(start, end), title)


def waited_until(run: Run, now: datetime) -> datetime:
    if run.attempts:
        return max(run.nominal_at, run.attempts[0].started_at)
    return now if run.state is RunState.WAITING else run.nominal_at


def labels_of(window: Window) -> Iterable[Label]:
    """Labels at round times."""
    length = window.end - window.start
    step = next((step for step in STEPS if length / step <= MOST_LABELS), STEPS[-1])
    form = "%b %d" if step >= DAY else "%H:%M" if step >= MINUTE else "%H:%M:%S"
    epoch = datetime(2000, 1, 1, tzinfo=UTC)
    moment = epoch + ((window.start - epoch) // step + 1) * step
    while moment <= window.end:
        yield Label(window.x(moment), f"{moment:{form}}")
        moment += step


# What a job follows and what follows it, a few steps in both directions.


#: Steps from the job, and jobs of one step; further ones are counted.
MOST_STEPS = 3
MOST_IN_A_STEP = 12

#: Sizes in the picture's own units. There is a column for each step, and a line for each job.
COLUMN, LINE, BOX_WIDTH, BOX_HEIGHT = 190, 30, 150, 22

#: Longer names are cut; the whole name is in the link's title.
LONGEST_SHOWN = 20

Step = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Box:
    """A job at its place; `word` is its state, or its last outcome when nothing of it is open."""

    job: str
    word: str
    x: int
    y: int

    @property
    def label(self) -> str:
        cut = len(self.job) > LONGEST_SHOWN
        return self.job[: LONGEST_SHOWN - 1] + "\u2026" if cut else self.job


@dataclass(frozen=True, slots=True)
class Picture:
    """lines: from the right edge of a box to the left edge of one that follows it. left_out: how
    many jobs of a step are not shown."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[tuple[int, int, int, int], ...]
    left_out: int


def picture_of(ledger: Ledger, job: JobRecord) -> Picture | None:
    """The picture; None for a job that follows no other and that no other follows."""
    name, specs = job.spec.name, {job.spec.name: job.spec}
    before = steps_from(name, lambda names: followed_by(ledger, specs, names))
    after = steps_from(name, Followers(ledger).of)
    if not before and not after:
        return None
    columns = [*reversed(before), (name,), *after]
    shown = [tuple(column[:MOST_IN_A_STEP]) for column in columns]
    specs.update(ledger.some_specs({each for column in shown for each in column} - specs.keys()))
    records = {each.spec.name: each for each in ledger.records_of(list(specs.values()))}
    left_out = sum(map(len, columns)) - sum(map(len, shown))
    return drawn(shown, records, left_out)


def steps_from(
    name: str, next_to: Callable[[Sequence[str]], Mapping[str, Sequence[str]]]
) -> list[tuple[str, ...]]:
    """The jobs one step away, two steps ...; each once, where it is nearest."""
    found: list[tuple[str, ...]] = []
    known: set[str] = {name}
    last: tuple[str, ...] = (name,)
    for _ in range(MOST_STEPS):
        near = {each for names in next_to(last).values() for each in names} - known
        if not near:
            break
        last = tuple(sorted(near))
        known |= near
        found.append(last)
    return found


def followed_by(
    ledger: Ledger, specs: dict[str, JobSpec], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """By job, the jobs that it follows. Adds to `specs`."""
    specs.update(ledger.some_specs(set(names) - specs.keys()))
    return {name: specs[name].after for name in names if name in specs}


def drawn(
    columns: Sequence[Sequence[str]], records: Mapping[str, JobRecord], left_out: int
) -> Picture:
    tallest = max(map(len, columns))
    boxes = {
        name: Box(name, word_of(records.get(name)), x * COLUMN, top_of(column, tallest) + y * LINE)
        for x, column in enumerate(columns)
        for y, name in enumerate(column)
    }
    lines = lines_between(boxes, [record.spec for record in records.values()])
    width = (len(columns) - 1) * COLUMN + BOX_WIDTH
    return Picture(width, tallest * LINE, tuple(boxes.values()), lines, left_out)


def top_of(column: Sequence[str], tallest: int) -> int:
    """The top of a column, such that all columns have the same middle line."""
    return (tallest - len(column)) * LINE // 2 + (LINE - BOX_HEIGHT) // 2


def lines_between(
    boxes: Mapping[str, Box], specs: Iterable[JobSpec]
) -> tuple[tuple[int, int, int, int], ...]:
    middle = BOX_HEIGHT // 2
    pairs = [
        (boxes[name], boxes[spec.name])
        for spec in specs
        for name in spec.after
        if name in boxes and spec.name in boxes
    ]
    return tuple((a.x + BOX_WIDTH, a.y + middle, b.x, b.y + middle) for a, b in pairs)


def word_of(job: JobRecord | None) -> str:
    if job is None:
        return "unknown"
    return job.last_outcome or "idle" if job.state == "idle" else job.state
