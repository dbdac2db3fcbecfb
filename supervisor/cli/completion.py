"""What a shell completes: names of jobs, ids of runs, queues, all from the ledger.

Each press of TAB starts a process that asks the ledger once, for two seconds at most. A ledger that
does not answer, or an app that cannot be loaded, completes nothing and prints nothing: any text
would appear in the middle of the command line. docs/reference/commands.md has the set-up.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from supervisor.cli.common import Context
from supervisor.ledger.connection import connect_briefly
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Wanted, open_ids, search
from supervisor.ledger.queues import LedgerQueues, queues
from supervisor.settings import Settings

#: Up to this many runs are offered, the newest, of up to this many jobs that match.
MOST_RUNS = 100
MOST_JOBS = 100

Names = Callable[[Ledger, str], Iterable[str]]
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(names: Names) -> Completer:
    """names: may return names that do not match; they are left out."""

    def complete(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                ledger = ledger_of(ctx)
                return [name for name in names(ledger, begun) if name.startswith(begun)]
        except Exception:  # noqa: BLE001 - an app's import may raise anything, and a shell has no place for it
            return []

    return complete


def ledger_of(ctx: click.Context) -> Ledger:
    """The ledger of the options before the verb: click parses them but does not call `main`."""
    given = ctx.parent.params if ctx.parent else {}
    context = Context(Settings.from_environ(os.environ), app_name=given.get("app_name"))
    if url := given.get("redis_url"):
        context.settings = replace(context.settings, redis_url=url)
    context.given_url = url or os.environ.get("SUPERVISOR_REDIS_URL")
    settings = context.effective_settings
    return Ledger(connect_briefly(settings), Keys.of(settings))


@completer
def job_names(ledger: Ledger, begun: str) -> Iterable[str]:
    return sorted(ledger.job_names())


@completer
def run_ids(ledger: Ledger, begun: str) -> Iterable[str]:
    """The newest first."""
    job, is_whole, _ = begun.partition("@")
    jobs = [job] if is_whole else [name for name in ledger.job_names() if name.startswith(job)]
    return [run.id for run in search(ledger, jobs[:MOST_JOBS], Wanted(limit=MOST_RUNS))]


@completer
def open_run_ids(ledger: Ledger, begun: str) -> Iterable[str]:
    return open_ids(ledger, MOST_RUNS)


@completer
def jobs_and_runs(ledger: Ledger, begun: str) -> Iterable[str]:
    if "@" not in begun:
        return sorted(ledger.job_names())
    jobs = [begun.partition("@")[0]]
    return [run.id for run in search(ledger, jobs, Wanted(limit=MOST_RUNS))]


@completer
def queue_names(ledger: Ledger, begun: str) -> Iterable[str]:
    roll = ledger.presences.roll()
    broker = LedgerQueues(ledger.client, roll)
    found = queues(ledger.specs().values(), roll, broker, ledger.drains.since())
    return sorted(queue.name for queue in found)


#: Characters that end a word for Bash, and also begin the next one.
KEPT = "@$"


class Bash(BashComplete):
    """Completes words with : and @ in them, such as the id of a run and `-A proj:app`.

    Bash takes them for several words (COMP_WORDBREAKS): click is given the line instead, and the
    part that Bash takes for earlier words is left out of what is answered.
    """

    source_template = BashComplete.source_template.replace(
        "env COMP_WORDS=",
        'env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" COMP_WORDS=',
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        self._begun = "" if line[-1:].isspace() else words.pop()
        return words[1:], self._begun

    def format_completion(self, item: CompletionItem) -> str:
        begun = self._begun
        if begun.startswith("-"):
            begun = begun.partition("=")[2]
        ends = [begun.rfind(mark) + (mark not in KEPT) for mark in os.environ["COMP_WORDBREAKS"]]
        before = begun[: max(0, *ends)]
        return f"{item.type},{item.value.removeprefix(before)}"


add_completion_class(Bash)
