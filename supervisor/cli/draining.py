"""Verbs that keep the runs of a queue from beginning, and let them go on: drain, undrain."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.types import DurationType
from supervisor.display.words import stamp
from supervisor.errors import UnknownQueue

if TYPE_CHECKING:
    from supervisor.ledger.runs import Ledger

POLL_SECONDS = 0.4

#: Of the runs that are at work, so many are named.
MOST_NAMED = 5


@click.command()
@click.argument("queue")
@click.option(
    *("--wait", "patience"),
    type=DurationType(),
    help="Wait at most so long for what runs (10m, 30s); exit 1 if it runs then.",
)
@click.option("--force", is_flag=True, help="Also a queue that no worker consumes now.")
@pass_context
def drain(context: Context, queue: str, patience: timedelta | None, force: bool) -> None:
    """Let nothing more begin from QUEUE; what runs goes on, what is due waits until `undrain`."""
    ledger = context.ledger
    if not force:
        check_known(ledger, queue)
    since = ledger.drains.drain(queue)
    click.echo(f"nothing begins from {queue} since {stamp(since)}")
    at_work = ledger.drains.at_work(queue)
    if patience is not None:
        deadline = time.monotonic() + patience.total_seconds()
        while at_work and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            at_work = ledger.drains.at_work(queue)
    click.echo(at_work_words(queue, at_work))
    if at_work and patience is not None:
        sys.exit(1)


@click.command()
@click.argument("queue")
@pass_context
def undrain(context: Context, queue: str) -> None:
    """Let runs begin from QUEUE again, at first those that are queued."""
    since = context.ledger.drains.undrain(queue)
    if not since:
        check_known(context.ledger, queue)
    was = f"it was drained since {stamp(since)}" if since else "it was not drained"
    click.echo(f"{queue} goes on; {was}")


def check_known(ledger: Ledger, queue: str) -> None:
    """Raises UnknownQueue."""
    from supervisor.execution.consumption import queues
    from supervisor.ledger.queues import LedgerQueues

    roll = ledger.presences.roll()
    broker = LedgerQueues(ledger.client, roll)
    found = queues(ledger.specs().values(), roll, broker, ledger.drains.since())
    known = [one.name for one in found]
    if queue not in known:
        raise UnknownQueue(queue, known)


def at_work_words(queue: str, run_ids: Sequence[str]) -> str:
    if not run_ids:
        return f"{queue} is drained: nothing is at work"
    named = ", ".join(run_ids[:MOST_NAMED])
    more = f" and {len(run_ids) - MOST_NAMED} more" if len(run_ids) > MOST_NAMED else ""
    return f"{len(run_ids)} at work: {named}{more}"


VERBS: tuple[click.Command, ...] = (drain, undrain)
