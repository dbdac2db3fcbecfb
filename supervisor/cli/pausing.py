"""Verbs that stop and start the ticks of jobs: pause, resume."""

from __future__ import annotations

import click

from supervisor import control
from supervisor.cli.context import Context, pass_context
from supervisor.cli.types import MomentType, Named, moment_of


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--note", default="", help="Why, for those who wonder; `supervisor jobs` shows it.")
@click.option(
    "--until",
    type=MomentType(ahead=True),
    help="When the jobs resume by themselves: 1h (from now), 06:00, 2026-03-01T06:00.",
)
@pass_context
def pause(context: Context, names: tuple[str, ...], note: str, until: Named | None) -> None:
    """Exclude the ticks of these jobs until they are resumed; `trigger` still works."""
    now = context.ledger.now()
    for spec in [context.ledger.spec(name) for name in names]:
        moment = control.pause(context.ledger, spec.name, note, moment_of(until, spec.zone, now))
        end = moment and moment.astimezone(spec.zone).isoformat(timespec="seconds")
        until_when = f" until {end}" if end else ""
        click.echo(f"{spec.name} paused{until_when}")


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
    for spec in [context.ledger.spec(name) for name in names]:
        caught_up = control.resume(context.ledger, spec.name, catch_up=catch_up)
        click.echo(f"{spec.name} resumed" + (f", {caught_up} caught up" if catch_up else ""))


VERBS: tuple[click.Command, ...] = (pause, resume)
