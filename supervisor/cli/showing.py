"""All that is known of one run: its attempts, its steps, the end of its log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from supervisor.cli.output import print_table
from supervisor.display.reports import LogText, harmless, line_shape, progress_words
from supervisor.display.rows import dropped_words, why
from supervisor.display.shapes import run_shape
from supervisor.display.steps import (
    STEP_COLUMNS,
    items_words,
    param_words,
    params_shape,
    step_row,
    step_shape,
)
from supervisor.errors import UnknownRun
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import Run, StepId

#: Of the end of a run's log; `show --follow` prints all of it.
LINES_SHOWN = 20

#: Of the items of a batch that are at work, and of those that are looked through for them.
ITEMS_SHOWN = 20
ITEMS_LOOKED_AT = 1_000

NOT_BEGUN = "that item is not queued yet"


def whole_shape(ledger: Ledger, run_id: str) -> dict[str, Any]:
    """Raises UnknownRun."""
    run = known(ledger, run_id)
    log = [line_shape(line) for line in ledger.reports.lines(run_id)]
    shape = run_shape(run) | {"log": log}
    if run.has_steps:
        steps = [step_shape(step) for step in ledger.steps.records(run_id)]
        shape |= {"steps": steps, "params": params_of(ledger, run)}
        shape["returned_twice"] = {name: list(by) for name, by in run.returned_twice.items()}
    if run.batch:
        kept = ledger.runs(ledger.steps.kept_items(run_id, limit=run.batch.total))
        shape["items"] = {
            "total": run.batch.total,
            "ended": dict(run.batch.ended),
            "states": ledger.steps.item_states(run_id),
            "kept": [run_shape(item) for item in kept],
        }
    return shape


def print_whole(ledger: Ledger, run_id: str) -> None:
    """Raises UnknownRun."""
    run = known(ledger, run_id)
    found = run_shape(run)
    attempts, _ = found.pop("attempts"), found.pop("attempts_dropped")
    found["progress"] = items_words(run.batch) or progress_words(run.progress) or None
    if run.has_steps:
        found["params"] = param_words(params_of(ledger, run)) or None
    if run.has_steps or run.batch:
        attempts, found["attempt"] = [], None
    for name, by in run.returned_twice.items():
        found["returned_twice"] = f"{name} by {', '.join(by)}; that of {by[-1]} holds"
    for key, value in found.items():
        if value is not None:
            click.echo(f"{key:<18}{harmless(str(value))}")
    if dropped := dropped_words(run):
        click.echo(dropped)
    for attempt in attempts:
        facts = "  ".join(f"{key} {value}" for key, value in attempt.items() if value is not None)
        click.echo(harmless(facts))
    print_parts(ledger, run)
    for text in list(LogText().of(ledger.reports.lines(run_id)))[-LINES_SHOWN:]:
        click.echo(text)


def print_parts(ledger: Ledger, run: Run) -> None:
    if run.has_steps:
        now = datetime.now(UTC)
        rows = [step_row(step, now) for step in ledger.steps.records(run.id)]
        print_table(STEP_COLUMNS, rows)
    if run.batch:
        at_work = ledger.runs(ledger.steps.below([run.id])[:ITEMS_LOOKED_AT])
        begun = [item for item in at_work if item.attempt]
        for item in [*begun[:ITEMS_SHOWN], *ledger.runs(ledger.steps.kept_items(run.id))]:
            crashed = f"its worker died {item.crashes} times" if item.crashes else ""
            said = (progress_words(item.progress), why(item), crashed)
            words = harmless(", ".join(filter(None, said)))
            click.echo(f"{item.id}  {item.state.value}  {words}".rstrip())


def known(ledger: Ledger, run_id: str) -> Run:
    """Raises UnknownRun, which says of an item of a batch why there is no record of it."""
    try:
        return ledger.run(run_id)
    except UnknownRun:
        place = StepId.of(run_id)
        states = ledger.steps.item_states(place.batch) if place else ""
        if place is None or place.item is None or place.item >= len(states):
            raise
        has_ended = states[place.item] != "."
        what = "that item has ended; only of others a record is kept" if has_ended else NOT_BEGUN
        raise UnknownRun(run_id, what) from None


def params_of(ledger: Ledger, run: Run) -> dict[str, Any]:
    return params_shape(run, ledger.steps.params(run.id))
