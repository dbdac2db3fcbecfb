"""Tables as aligned text: their layout, and the rows of jobs, runs, steps and actions.

On a terminal that is too narrow the least important columns are left out, and a last line names
them. No cell is ever cut or wrapped, so that a name or the id of a run can be copied; the terminal
wraps a line that is still too long. A CJK character takes two cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from wcwidth import wcswidth

from supervisor.job.run import Run, RunState, StepRecord
from supervisor.ledger.actions import Entry, Outcome
from supervisor.ledger.job_record import JobRecord
from supervisor.operate.words import (
    age,
    ahead,
    dropped_words,
    duration,
    harmless,
    items_words,
    outcome_words,
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

GAP = "  "

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Columns:
    names: tuple[str, ...]
    """The headers."""

    drops: tuple[str, ...] = ()
    """Those that may be left out, the least important first."""

    @classmethod
    def named(cls, names: str, drops: str = "") -> Columns:
        """Each a list of headers with commas between them."""
        return cls(*(tuple(filter(None, text.split(", "))) for text in (names, drops)))


def lines(columns: Columns, rows: Sequence[Row], width: int | None = None) -> list[str]:
    """The header and the rows, a line each; without a `width` with all columns."""
    table = [columns.names, *rows]
    drops = list(columns.drops)
    left_out: list[str] = []
    while width is not None and drops and narrowest(table) > width:
        left_out.append(drops.pop(0))
        shown = [number for number, name in enumerate(columns.names) if name not in left_out]
        table = [tuple(row[number] for number in shown) for row in (columns.names, *rows)]
    widths = [max(map(wcswidth, cells)) for cells in zip(*table, strict=True)]
    note = [f"(too narrow for: {', '.join(left_out)})"] if left_out else []
    return [*(joined(row, widths) for row in table), *note]


def narrowest(table: Sequence[Row]) -> int:
    """The width that it needs; of the last column, where sentences stand, only its header."""
    *columns, last = zip(*table, strict=True)
    return sum(max(map(wcswidth, cells)) + len(GAP) for cells in columns) + wcswidth(last[0])


def joined(row: Row, widths: Sequence[int]) -> str:
    cells = (cell + " " * (width - wcswidth(cell)) for cell, width in zip(row, widths, strict=True))
    return GAP.join(cells).rstrip()


# Jobs, runs, steps, actions.


JOB_COLUMNS = Columns.named(
    "job, schedule, state, next run, last run, outcome, "
    "started, succeeded, failed, skipped, requeued",
    drops="requeued, started, succeeded, skipped, last run, failed, schedule, outcome, next run",
)


UNGUARDED_COLUMNS = Columns.named("entry, next due, reason")


RUN_COLUMNS = Columns.named(
    "run, attempt, state, started, duration, reason",
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
        outcome_words(job.last_outcome),
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
        yield (run.id, "", run.state.words, span_of(run), "", reason_words(run))
    for attempt in reversed(run.attempts):
        last = attempt is run.attempts[-1]
        state = run.state if last and (is_running or ended) else attempt.outcome
        lasted = seconds_between(attempt.started_at, attempt.finished_at or now)
        yield (
            run.id,
            str(attempt.number),
            outcome_words(state),
            stamp(attempt.started_at),
            duration(lasted),
            (", ".join(filter(None, (how_far, reason_words(run)))) if last else attempt.reason)
            or "",
        )
    if dropped := dropped_words(run):
        yield (run.id, "", "", "", "", dropped)


STEP_COLUMNS = Columns.named(
    "step, priority, task, attempt, state, started, duration, reason",
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
        run.state.words,
        stamp(started),
        duration(seconds_between(started, ended or now)),
        harmless(", ".join(filter(None, (progress, run.reason, earlier)))),
    )


ACTION_COLUMNS = Columns.named("at, who, from, action, target, what", drops="from")


def action_row(entry: Entry) -> tuple[str, ...]:
    action = entry.action
    verb = action.verb if entry.outcome is Outcome.DONE else f"{action.verb} {entry.outcome.value}"
    reason = [f"reason: {action.reason}"] if action.reason else []
    what = "; ".join([*reason, *what_words(entry)])
    return stamp(entry.at), who(action.by), where(action.by), verb, targets(entry), what
