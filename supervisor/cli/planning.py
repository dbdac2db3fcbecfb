"""Verbs for what schedule files would change: plan, apply."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.output import print_json, printable
from supervisor.cli.schedules import path_argument, read_or_exit
from supervisor.display.plans import plan_lines, plan_shape, summary
from supervisor.errors import NotConfigured
from supervisor.files.schedule_files import ScheduleSet
from supervisor.job.changes import Changes, difference
from supervisor.ledger.readings import Loaded
from supervisor.plan.planning import Plan, plan_of

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@path_argument
@json_option
@click.option("--exit-code", is_flag=True, help="Exit 1 when something would change.")
@pass_context
def plan(context: Context, path: Path | None, as_json: bool, exit_code: bool) -> None:
    """Say what loading the schedule files at PATH would change, and what comes of it.

    Files with problems are told as by `check`, and exit 1.
    """
    wanted = read_or_exit(context, path, as_json)
    found = plan_on(context, context.ledger.loaded(), wanted)
    show(found, as_json)
    if exit_code and found.changes:
        sys.exit(1)


@click.command()
@path_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--take-over", is_flag=True, help="The ledger is this app's from now on.")
@json_option
@pass_context
def apply(context: Context, path: Path | None, yes: bool, take_over: bool, as_json: bool) -> None:
    """Load the schedule files at PATH at once, as beat would. Prints the plan and asks first.

    A ledger with the jobs of another app is refused. --take-over is for an app that was renamed:
    beats of the other name end.
    """
    # Whose entries are written depends on the app's RedBeat settings.
    if context.app is None:
        raise NotConfigured("name the Celery app: supervisor -A proj apply")
    from supervisor.app import owner_of, required_settings
    from supervisor.beat.entries import Entries
    from supervisor.beat.loading import load

    required_settings(context.app)
    wanted, ledger = read_or_exit(context, path, as_json), context.ledger
    if not take_over:
        ledger.check_owner(owner_of(context.app))
    loaded = ledger.loaded()
    found = plan_on(context, loaded, wanted)
    show(found, as_json)
    if not found.changes and not take_over:
        return
    warn_of_beat(context, wanted)
    if not yes:
        click.confirm("Apply?", abort=True, err=True)
    if take_over:
        ledger.take_over(owner_of(context.app))
    entries = Entries(context.app, ledger.client, ledger.keys)
    now, seen = ledger.now(), loaded.specs
    done = load(ledger, entries, wanted.specs, wanted.digest, now, planned_on=seen)
    click.echo(f"applied: {summary(done)}", err=as_json)


def plan_on(context: Context, loaded: Loaded, wanted: ScheduleSet) -> Plan:
    ledger = context.ledger
    touched = names_of(difference(loaded.specs, wanted.specs, loaded.unread))
    records = ledger.records_of([wanted.specs[name] for name in touched])
    durations = {record.spec.name: record.durations for record in records}
    return plan_of(loaded.specs, wanted.specs, durations, ledger.now(), loaded.unread)


def names_of(changes: Changes) -> tuple[str, ...]:
    """Of the jobs that a plan says more about."""
    return *changes.added, *changes.changed


def show(found: Plan, as_json: bool) -> None:
    if as_json:
        print_json(plan_shape(found))
        return
    for line in plan_lines(found):
        click.echo(printable(line))


def warn_of_beat(context: Context, wanted: ScheduleSet) -> None:
    """A beat that follows other files loads those again within a second."""
    beat, now = context.ledger.beat(), context.ledger.now()
    if beat.leads(now) and beat.follows not in (None, wanted.digest):
        click.echo(
            f"warning: beat {beat.leader} leads and follows schedule files that differ from these; "
            "it will load its own again",
            err=True,
        )


VERBS: tuple[click.Command, ...] = (plan, apply)
