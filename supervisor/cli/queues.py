"""Verbs about queues: queues, drain, undrain."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import (
    Context,
    DurationType,
    examples,
    json_option,
    pass_context,
    print_done,
    print_json,
    reason_option,
    schedules_option,
)
from supervisor.errors import NotFound, did_you_mean

if TYPE_CHECKING:
    from supervisor.job.topology import WorkerSpec
    from supervisor.ledger.ledger import Ledger

POLL_SECONDS = 0.4

#: Up to this many running runs are listed by name.
MOST_LISTED = 5


@click.command(epilog=examples("-A proj queues"))
@schedules_option
@json_option
@pass_context
def queues(context: Context, schedules: Path | None, as_json: bool) -> None:
    """List the queues, with the command that starts each worker.

    With -A, jobs that the app cannot run are left out, and named on standard error.
    """
    from supervisor.catalog.schedule_files import load

    app = context.app_name or "proj"
    specs = load(context.schedules(schedules), prefix=context.prefix).specs
    if context.app is not None:
        from supervisor.app import tasks_of

        tasks = tasks_of(context.app)
        faults = [(name, f.text) for name, spec in specs.items() for f in tasks.faults(spec)]
        for name, text in faults:
            click.echo(f"note: job {name!r}: {text}", err=True)
        specs = {name: spec for name, spec in specs.items() if name not in dict(faults)}
    workers = context.topology(specs.values()).workers
    if as_json:
        print_json([described(worker, app) for worker in workers])
        return
    for worker in workers:
        kind = "one run at a time" if worker.serial else "default worker"
        click.echo(f"{', '.join(worker.queues)}  ({kind})")
        click.echo(f"  jobs    {', '.join(worker.jobs) or 'none'}")
        click.echo(f"  worker  {shlex.join(worker.command(app))}")


def described(worker: WorkerSpec, app: str) -> dict[str, object]:
    return {
        "worker": worker.name,
        "queues": worker.queues,
        "jobs": worker.jobs,
        "serial": worker.serial,
        "command": worker.command(app),
    }


@click.command(epilog=examples("drain serial.import --wait 10m --reason 'database upgrade'"))
@click.argument("queue")
@click.option(
    "--wait",
    "wait",
    type=DurationType(),
    help="Wait up to this long (30s, 10m) for running runs; exit 1 if any are left.",
)
@click.option("--force", is_flag=True, help="Accept a queue that no job and no worker uses.")
@reason_option
@json_option
@pass_context
def drain(
    context: Context,
    queue: str,
    wait: timedelta | None,
    force: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Start no more runs from a queue.

    Runs in progress finish, and due ones wait until `undrain`.
    """
    from supervisor.operate.shapes import iso_utc
    from supervisor.operate.words import stamp

    ledger = context.ledger
    with context.acting("drain", queue, reason) as action:
        if not force:
            check_exists(ledger, queue)
        since = ledger.drains.drain(queue, action)
    click.echo(
        f"{queue} has been drained since {stamp(since)}: no more runs start from it", err=as_json
    )
    running = ledger.drains.running(queue)
    if wait is not None:
        deadline = time.monotonic() + wait.total_seconds()
        while running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            running = ledger.drains.running(queue)
    if as_json:
        fields = {"since": iso_utc(since), "running": list(running)}
        print_done("drain", [{"name": queue, "state": "drained", **fields}])
    else:
        click.echo(running_words(queue, running))
    if running and wait is not None:
        sys.exit(1)


@click.command(epilog=examples("undrain serial.import"))
@click.argument("queue")
@reason_option
@json_option
@pass_context
def undrain(context: Context, queue: str, reason: str, as_json: bool) -> None:
    """Start runs from a drained queue again."""
    from supervisor.ledger.actions import Action
    from supervisor.operate.shapes import iso_utc
    from supervisor.operate.words import stamp

    action = Action(context.actor, "undrain", queue, reason)
    since = context.ledger.drains.undrain(queue, action)
    if not since:
        check_exists(context.ledger, queue)
    if as_json:
        result = {"name": queue, "state": "undrained", "drained_since": iso_utc(since)}
        print_done("undrain", [result])
        return
    was = f"it had been drained since {stamp(since)}" if since else "it was not drained"
    click.echo(f"runs start from {queue} again; {was}")


def check_exists(ledger: Ledger, queue: str) -> None:
    """Raises NotFound."""
    names = [one.name for one in ledger.queues(ledger.specs().values())]
    if queue not in names:
        listed = f"there are {', '.join(names)}" if names else "there are no queues yet"
        raise NotFound(
            f"unknown queue {queue!r}{did_you_mean(queue, names)}: no worker consumes it and no job"
            f" goes to it; {listed}"
        )


def running_words(queue: str, run_ids: Sequence[str]) -> str:
    from supervisor.operate.words import listed

    if not run_ids:
        return f"no run of {queue} is running"
    return f"{len(run_ids)} still running: {listed(run_ids, MOST_LISTED)}"
