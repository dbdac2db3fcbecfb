"""Tables on a terminal: their layout, and the rows of jobs, runs, steps and actions.

What fits is aligned text. What does not fit is made to, in this order:

1. Cells of columns that may fold are wrapped between words.
2. The last column, if it may fold, goes below its row.
3. The least important column is left out and the layout tried again; a last line names these.

No cell is ever cut, so that a name or the id of a run can be copied. A line that is still too long
is wrapped by the terminal. Widths are those of a terminal, where a CJK character takes two cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from wcwidth import wcswidth

from supervisor.job.run import Run, RunState, StepRecord
from supervisor.ledger.actions import Entry, Outcome
from supervisor.ledger.records import JobRecord
from supervisor.operate.words import (
    age,
    ahead,
    dropped_words,
    duration,
    harmless,
    items_words,
    progress_words,
    reason_words,
    seconds_between,
    span_of,
    stamp,
    state_words,
    targets,
    what_words,
    where,
    who,
)

GAP = 2

#: Wider than any row.
UNBOUNDED = 10**6
INDENT = "    "

Row = Sequence[str]
Block = Sequence[str]
"""The lines of one row."""


@dataclass(frozen=True, slots=True)
class Columns:
    """names: the headers. folds: those whose cells may be wrapped. drops: those that may be left
    out, the least important first."""

    names: tuple[str, ...]
    folds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    @classmethod
    def named(cls, names: str, *, folds: str = "", drops: str = "") -> Columns:
        """Each a list of headers with commas between them."""
        return cls(*(tuple(filter(None, text.split(", "))) for text in (names, folds, drops)))


def lines(columns: Columns, rows: Iterable[Row], width: int | None = None) -> list[str]:
    """The header and the rows; without a `width` each is one line, however long."""
    rows = [columns.names, *rows]
    if width is None:
        return [line for block in folded(rows, columns.folds, UNBOUNDED) for line in block]
    text: list[str] = []
    left_out: list[str] = []
    for dropped in (*columns.drops, None):
        shown = [number for number, name in enumerate(columns.names) if name not in left_out]
        cells = [[row[number] for number in shown] for row in rows]
        for layout in (folded, hung):
            text = [line for block in layout(cells, columns.folds, width) for line in block]
            if all(wcswidth(line) <= width for line in text):
                return [*text, *notes(left_out)]
        if dropped:
            left_out.append(dropped)
    return [*text, *notes(left_out)]


def notes(left_out: Sequence[str]) -> list[str]:
    return [f"(too narrow for: {', '.join(left_out)})"] if left_out else []


def folded(rows: Sequence[Row], folds: Sequence[str], width: int) -> Iterator[Block]:
    """The columns that may fold share the width that the others leave."""
    natural = [max(map(wcswidth, cells)) for cells in zip(*rows, strict=True)]
    least = [max(map(longest_word, cells)) for cells in zip(*rows, strict=True)]
    folding = [number for number, name in enumerate(rows[0]) if name in folds]
    fixed = sum(size for number, size in enumerate(natural) if number not in folding)
    left = width - fixed - GAP * (len(natural) - 1) - sum(least[number] for number in folding)
    widths = list(natural)
    for place, number in enumerate(folding):
        share = max(0, left) // (len(folding) - place)
        widths[number] = min(natural[number], least[number] + share)
        left -= widths[number] - least[number]
    for row in rows:
        cells = [
            wrapped(cell, widths[number]) if number in folding else [cell]
            for number, cell in enumerate(row)
        ]
        yield [
            joined([cell[line] if line < len(cell) else "" for cell in cells], widths)
            for line in range(max(map(len, cells)))
        ]


def hung(rows: Sequence[Row], folds: Sequence[str], width: int) -> Iterator[Block]:
    """The last column of each row stands below it."""
    if rows[0][-1] not in folds:
        yield from folded(rows, folds, width)
        return
    above = [row[:-1] for row in rows]
    widths = [max(map(wcswidth, cells)) for cells in zip(*above, strict=True)]
    for row in rows:
        below = wrapped(row[-1], width - len(INDENT)) if row[-1] else []
        yield [joined(row[:-1], widths), *(INDENT + line for line in below)]


def joined(row: Row, widths: Sequence[int]) -> str:
    padded = (
        cell + " " * (width - wcswidth(cell)) for cell, width in zip(row, widths, strict=True)
    )
    return (" " * GAP).join(padded).rstrip()


def wrapped(cell: str, width: int) -> list[str]:
    lines = [""]
    for word in cell.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if wcswidth(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def longest_word(cell: str) -> int:
    return max(map(wcswidth, cell.split()), default=0)


# Jobs, runs, steps, actions.


JOB_COLUMNS = Columns.named(
    "job, schedule, state, next run, last run, outcome, "
    "started, succeeded, failed, skipped, requeued",
    folds="schedule, state",
    drops="requeued, started, succeeded, skipped, last run, failed, schedule, outcome, next run",
)


UNGUARDED_COLUMNS = Columns.named("entry, next due, reason", folds="reason")


RUN_COLUMNS = Columns.named(
    "run, attempt, state, started, duration, reason",
    folds="reason",
    drops="started, duration, attempt",
)


def job_row(job: JobRecord, now: datetime) -> Sequence[str]:
    zone = "" if job.spec.timezone == "UTC" else f" {job.spec.timezone}"
    return (
        job.spec.name,
        job.spec.schedule + zone,
        state_words(job, now),
        ahead(job.next_run_at, now),
        age(job.last_start_at, now),
        job.last_outcome or "",
        str(job.counters.get("started", 0)),
        str(job.counters.get("finished:succeeded", 0)),
        str(job.counters.get("finished:failed", 0)),
        str(job.skipped),
        str(job.counters.get("requeued", 0)),
    )


def run_rows(run: Run, now: datetime, how_far: str = "") -> Iterator[Sequence[str]]:
    """A row for each attempt, newest first; one for a run that is not running or never started."""
    is_running = run.state is RunState.RUNNING
    ended = bool(run.attempts) and not run.state.is_open
    if not is_running and not ended:
        yield (run.id, "", run.state.value, span_of(run), "", reason_words(run))
    for attempt in reversed(run.attempts):
        last = attempt is run.attempts[-1]
        state = run.state.value if last and (is_running or ended) else str(attempt.outcome)
        lasted = seconds_between(attempt.started_at, attempt.finished_at or now)
        yield (
            run.id,
            str(attempt.number),
            state,
            stamp(attempt.started_at),
            duration(lasted),
            (", ".join(filter(None, (how_far, reason_words(run)))) if last else attempt.reason)
            or "",
        )
    if dropped := dropped_words(run):
        yield (run.id, "", "", "", "", dropped)


STEP_COLUMNS = Columns.named(
    "step, priority, task, attempt, state, started, duration, reason",
    folds="reason",
    drops="started, task, priority, duration, attempt",
)


def step_row(step: StepRecord, now: datetime) -> Sequence[str]:
    run = step.run
    earlier = f"not run again: {step.done}" if step.done else ""
    if run is None:
        return (step.name, str(step.priority), step.task, "", "", "", "", earlier)
    started, ended = run.started_at, run.finished_at
    progress = items_words(run.batch) or progress_words(run.progress)
    return (
        step.name,
        str(step.priority),
        step.task,
        str(run.attempt or ""),
        run.state.value,
        stamp(started),
        duration(seconds_between(started, ended or now)),
        harmless(", ".join(filter(None, (progress, run.reason, earlier)))),
    )


ACTION_COLUMNS = Columns.named("at, who, from, action, target, what", folds="what", drops="from")


def action_row(entry: Entry) -> tuple[str, ...]:
    action = entry.action
    verb = action.verb if entry.outcome is Outcome.DONE else f"{action.verb} {entry.outcome.value}"
    reason = [f"reason: {action.reason}"] if action.reason else []
    what = "; ".join([*reason, *what_words(entry)])
    return stamp(entry.at), who(action.by), where(action.by), verb, targets(entry), what
