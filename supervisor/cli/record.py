"""The verb that reads the record of actions: log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import click

from supervisor.cli.common import (
    Context,
    MomentType,
    Named,
    json_option,
    moment_of,
    pass_context,
    print_json,
    print_table,
)
from supervisor.ledger.actions import Actions, Entry, WantedActions
from supervisor.operate.record import ACTION_COLUMNS, action_row, entry_shape
from supervisor.operate.shapes import harmless

POLL_SECONDS = 0.5


@click.command()
@click.option("--job", help="Only what was done to this job, or to those that match: 'report-*'.")
@click.option("--by", help="Only what was done by this name or system user, or 'deploy-*'.")
@click.option("--verb", help="Only this: trigger, cancel, pause, put, remove, apply, login ...")
@click.option("--since", type=MomentType(), help="2d (ago), 09:05 or 2026-03-01, in UTC.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Up to."
)
@click.option("--follow", "follows", is_flag=True, help="Print what is entered from now on.")
@json_option
@pass_context
def log(
    context: Context,
    job: str | None,
    by: str | None,
    verb: str | None,
    since: Named | None,
    limit: int,
    follows: bool,
    as_json: bool,
) -> None:
    """Show who did what, from where, and why: the record of actions, newest first.

    With --follow each is a line, as JSON a line as well.
    """
    ledger = context.ledger
    moment = moment_of(since, ZoneInfo("UTC"), ledger.now())
    wanted = WantedActions(job=job, by=by, verb=verb, since=moment, limit=limit)
    if follows:
        for entry in followed(ledger.actions):
            if wanted.matches(entry.action):
                click.echo(line_of(entry, as_json=as_json))
        return
    found = ledger.actions.search(wanted)
    if as_json:
        print_json([entry_shape(entry) for entry in found])
    else:
        print_table(ACTION_COLUMNS, [action_row(entry) for entry in found])


def followed(actions: Actions) -> Iterator[Entry]:
    """Until Ctrl-C."""
    last = actions.last_id()
    while True:
        found = actions.after(last)
        yield from found
        last = found[-1].id if found else last
        time.sleep(0 if found else POLL_SECONDS)


def line_of(entry: Entry, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(entry_shape(entry))
    return "  ".join(harmless(cell) for cell in action_row(entry) if cell)
