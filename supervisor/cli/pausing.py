"""Verbs that stop and start the ticks of jobs: pause, resume."""

from __future__ import annotations

import click

from supervisor.backfilling import backfill, missed_in_pause
from supervisor.cli.context import Context, pass_context
from supervisor.cli.types import InstantType, zoned


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--note", default="", help="Why, for those who wonder; `supervisor jobs` shows it.")
@click.option("--until", type=InstantType(), help="When the jobs resume by themselves.")
@pass_context
def pause(context: Context, names: tuple[str, ...], note: str, until: str | None) -> None:
    """Exclude the ticks of these jobs until they are resumed; `trigger` still works."""
    for spec in [context.ledger.spec(name) for name in names]:
        moment = zoned(until, spec.zone)
        if moment and moment <= context.ledger.now():
            raise click.UsageError("--until is in the past")
        context.ledger.pause(spec.name, note, moment)
        click.echo(f"{spec.name} paused" + (f" until {moment.isoformat()}" if moment else ""))


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--catch-up",
    is_flag=True,
    help="Run the ticks of the pause, as `catchup` does after an outage.",
)
@pass_context
def resume(context: Context, names: tuple[str, ...], catch_up: bool) -> None:
    """Emit the ticks of these jobs again, from now on."""
    ledger = context.ledger
    for spec in [ledger.spec(name) for name in names]:
        since = ledger.resume(spec.name)
        caught_up = missed_in_pause(spec, since, ledger.now()) if since and catch_up else []
        backfill(ledger, spec, caught_up, overlap=None)
        click.echo(f"{spec.name} resumed" + (f", {len(caught_up)} caught up" if catch_up else ""))


VERBS: tuple[click.Command, ...] = (pause, resume)
