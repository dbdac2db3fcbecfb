"""Follows a run until it has ended: its state, its progress, and the lines of its log."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import click
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from supervisor.display.reports import LogText, harmless, progress_words
from supervisor.display.rows import why
from supervisor.display.steps import at_work_words, items_words, share_of
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import Run

POLL_SECONDS = 0.4


class Screen(Protocol):
    """Where a run is followed: `say` adds a line, `show` tells how the run is, and how far."""

    def say(self, line: str) -> None: ...

    def show(self, state: str, words: str, share: float | None) -> None: ...


def follow(ledger: Ledger, run_id: str) -> Run:
    """Returns the run once it has ended. Raises UnknownRun."""
    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        transient=True,
    )
    on_terminal = sys.stdout.isatty()
    screen: Screen = BarScreen(bar) if on_terminal else LineScreen()
    shown: AbstractContextManager[object] = bar if on_terminal else nullcontext()
    with shown:
        run = follow_on(screen, ledger, run_id)
    reason = harmless(why(run))
    click.echo(f"{run.id} {run.state.value}" + (f": {reason}" if reason else ""))
    return run


def follow_on(screen: Screen, ledger: Ledger, run_id: str) -> Run:
    log, last = LogText(), None
    while True:
        run = ledger.run(run_id)
        # After the state: of a run that has ended, all lines are there.
        lines = ledger.reports.lines(run_id, last)
        last = lines[-1].id if lines else last
        for text in log.of(lines):
            screen.say(text)
        screen.show(run.state.value, *how_far(ledger, run))
        if not run.state.is_open:
            return run
        time.sleep(POLL_SECONDS)


def how_far(ledger: Ledger, run: Run) -> tuple[str, float | None]:
    """In words, and from 0 to 1 where that is known."""
    if run.has_steps:
        steps = ledger.steps.records(run.id)
        return at_work_words(steps), share_of(steps)
    if run.batch:
        return items_words(run.batch), run.batch.done / max(1, run.batch.total)
    return progress_words(run.progress), run.progress.share if run.progress else None


class LineScreen:
    """Plain lines; how the run is, whenever that has changed."""

    def __init__(self) -> None:
        self._shown = ""

    def say(self, line: str) -> None:
        click.echo(line)

    def show(self, state: str, words: str, share: float | None) -> None:
        line = f"{state} {words}".rstrip()
        if line != self._shown:
            click.echo(line)
        self._shown = line


class BarScreen:
    """A bar below the lines, on a terminal; one that swings when nobody knows the total."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        bar.add_task("", total=None, words="")
        [self._task] = bar.tasks

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, state: str, words: str, share: float | None) -> None:
        self._task.description = state
        self._task.fields["words"] = words
        self._task.total, self._task.completed = (None, 0) if share is None else (1, share)
