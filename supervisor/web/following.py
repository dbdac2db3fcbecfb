"""The picture of what a job follows and what follows it, a few steps in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import JobRecord

#: Steps from the job, and jobs of one step; further ones are counted.
MOST_STEPS = 3
MOST_IN_A_STEP = 12

#: Of the picture, in its own units: a column for a step, a line for a job.
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
    """None for a job that follows none and that none follows."""
    name, specs = job.spec.name, {job.spec.name: job.spec}
    before = steps_from(name, lambda names: followed_by(ledger, specs, names))
    after = steps_from(name, lambda names: followers_of(ledger, names))
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
    """Job -> those that it follows. Fills `specs`."""
    specs.update(ledger.some_specs(set(names) - specs.keys()))
    return {name: specs[name].after for name in names if name in specs}


def followers_of(ledger: Ledger, names: Sequence[str]) -> dict[str, list[str]]:
    """Job -> those that follow it, as far as the visitor sees them."""
    found = ledger.followers.of(names)
    seen = ledger.some_specs({each for followers in found.values() for each in followers})
    return {name: [each for each in followers if each in seen] for name, followers in found.items()}


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
    """So that the columns stand on one middle line."""
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
