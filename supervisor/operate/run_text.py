"""What is known of one run, as lines of text and as JSON, and its log as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from supervisor.errors import UnknownRun
from supervisor.job.run import Run
from supervisor.job.run_ids import StepId
from supervisor.ledger.ledger import Ledger
from supervisor.operate import shapes
from supervisor.operate.tables import step_row
from supervisor.operate.words import (
    LogText,
    dropped_words,
    failure_lines,
    harmless,
    items_words,
    outcome_words,
    param_words,
    progress_words,
    reason_words,
    running_steps_words,
)

#: Lines from the end of the log; `follow` yields all of them.
LINES_SHOWN = 20

#: How many running items of a batch are listed, and how many open items are searched for them.
ITEMS_SHOWN = 20
ITEMS_SEARCHED = 1_000

POLL_SECONDS = 0.4


def run_of(ledger: Ledger, run_id: str) -> Run:
    """The run. Raises UnknownRun, which says why an item of a batch has no record."""
    try:
        return ledger.run(run_id)
    except UnknownRun:
        step_id = StepId.of(run_id)
        states = ledger.steps.item_states(step_id.batch) if step_id else ""
        if step_id is None or step_id.item is None or step_id.item >= len(states):
            raise
        is_queued = states[step_id.item] != "."
        what = "has ended, and its record is not kept" if is_queued else "is not queued yet"
        raise UnknownRun(run_id, f"that item {what}") from None


def run_shape(ledger: Ledger, run: Run) -> dict[str, Any]:
    """The run as JSON, with its log and what it consists of."""
    without = () if run.has_steps else ("steps", "params")
    shape = shapes.whole_run(ledger, run).model_dump(mode="json", exclude={*without})
    shape["log"] = [shapes.LogLine.dumped(line) for line in ledger.reports.lines(run.id)]
    if run.has_steps:
        shape["returned_twice"] = {name: list(by) for name, by in run.returned_twice.items()}
    if run.batch:
        kept = ledger.runs(ledger.steps.kept_items(run.id, limit=run.batch.total))
        shape["items"] = {
            "total": run.batch.total,
            "ended": dict(run.batch.ended),
            "states": ledger.steps.item_states(run.id),
            "kept": [shapes.Run.dumped(item) for item in kept],
        }
    return shape


def state_line(run: Run) -> str:
    """``nightly@2026-03-01T02:00:00Z skipped: overlap``"""
    reason = reason_words(run)
    return harmless(f"{run.id} {run.state.words}" + (f": {reason}" if reason else ""))


def how_far(ledger: Ledger, run: Run) -> str:
    """The progress of the run, or of its running steps."""
    if run.has_steps:
        return running_steps_words(ledger.steps.records(run.id))
    return items_words(run.batch) or progress_words(run.progress)


def field_lines(ledger: Ledger, run: Run) -> Iterator[str]:
    """Each field of the run, and then its attempts."""
    shape = shapes.Run.dumped(run)
    attempts, _ = shape.pop("attempts"), shape.pop("attempts_dropped")
    shape["log_url"] = shapes.log_url_of(ledger, run)
    shape["obstacle"] = run.obstacle and f"{run.obstacle.text} ({run.obstacle.by})"
    shape["repeated_by"] = ", ".join(run.repeated_by) or None
    shape["progress"] = items_words(run.batch) or progress_words(run.progress) or None
    if run.has_steps:
        params = shapes.params_shape(run, ledger.steps.params(run.id))
        shape["params"] = param_words(params) or None
    if run.has_steps or run.batch:
        attempts, shape["attempt"] = [], None
    for name, by in run.returned_twice.items():
        shape["returned_twice"] = f"{name} by {', '.join(by)}; that of {by[-1]} is used"
    shape["state"] = run.state.words
    for key, value in shape.items():
        if value is not None:
            yield f"{key:<18}{harmless(str(value))}"
    if dropped := dropped_words(run):
        yield dropped
    for attempt in attempts:
        attempt["outcome"] = outcome_words(attempt["outcome"]) or None
        words = (f"{key} {value}" for key, value in attempt.items() if value is not None)
        yield harmless("  ".join(words))


def step_rows(ledger: Ledger, run: Run) -> list[Sequence[str]]:
    now = datetime.now(UTC)
    return [step_row(step, now) for step in ledger.steps.records(run.id)]


def item_lines(ledger: Ledger, run: Run) -> Iterator[str]:
    """Of a batch, the items that are running and those that are kept because they failed."""
    if not run.batch:
        return
    open_items = ledger.runs(ledger.steps.below([run.id])[:ITEMS_SEARCHED])
    started = [item for item in open_items if item.attempt]
    for item in [*started[:ITEMS_SHOWN], *ledger.runs(ledger.steps.kept_items(run.id))]:
        crashed = f"its worker died {item.crashes} times" if item.crashes else ""
        words = (progress_words(item.progress), reason_words(item), crashed)
        yield f"{item.id}  {item.state.words}  {harmless(', '.join(filter(None, words)))}".rstrip()


def log_lines(ledger: Ledger, run: Run) -> Iterator[str]:
    """The end of its log, and then the tracebacks."""
    yield from list(LogText().of(ledger.reports.lines(run.id)))[-LINES_SHOWN:]
    for failure in ledger.reports.failures(run.id):
        yield from failure_lines(failure)


def follow(ledger: Ledger, run_id: str) -> Iterator[str]:
    """Its log, and its state and progress when they change, until it ends. Raises UnknownRun."""
    log, last, shown = LogText(), None, ""
    while True:
        run = ledger.run(run_id)
        # Read after the state, so that all lines of a run that has ended are there.
        lines = ledger.reports.lines(run_id, last)
        last = lines[-1].id if lines else last
        yield from log.of(lines)
        state = f"{run.state.words} {how_far(ledger, run)}".rstrip()
        if state != shown:
            yield state
        shown = state
        if not run.state.is_open:
            break
        time.sleep(POLL_SECONDS)
    for failure in ledger.reports.failures(run_id):
        yield from failure_lines(failure)
    yield state_line(run)
