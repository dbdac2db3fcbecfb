"""Verbs about silences of notices: silence, silences, unsilence."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from supervisor.cli.common import (
    Context,
    DurationType,
    MomentType,
    Named,
    examples,
    json_option,
    moment_of,
    pass_context,
    print_done,
    print_json,
    print_table,
    reason_option,
)

if TYPE_CHECKING:
    from supervisor.features.notices.silences import Silence


@click.command(
    epilog=examples(
        "silence import-orders --for 2h --reason 'the shop is being moved'",
        "silence --label tenant=acme --until 06:00 --reason 'their database is upgraded'",
    ),
)
@click.argument("job", required=False)
@click.option(
    "--label", default="", help="Instead of a JOB: all with this label, such as tenant=acme."
)
@click.option(
    "--all", "is_of_all", is_flag=True, help="Instead of a JOB: all, and the service itself."
)
@click.option(
    "--until",
    type=MomentType(ahead=True),
    help="Its end: 06:00 (in the job's zone), 2026-03-01T06:00.",
)
@click.option("--for", "duration", type=DurationType(), help="How long: 90m, 2h.")
@click.option("--reason", required=True, help="Reason, for those who miss a notice.")
@json_option
@pass_context
def silence(
    context: Context,
    job: str | None,
    label: str,
    is_of_all: bool,
    until: Named | None,
    duration: timedelta | None,
    reason: str,
    as_json: bool,
) -> None:
    """Send no notices of a job for a time.

    It ends by itself. What happens meanwhile and is over by then is never sent; what still fails is
    sent then. Runs, pings, metrics and alerts of Prometheus are not affected.
    """
    from supervisor.operate import control
    from supervisor.operate.words import stamp

    if sum((job is not None, bool(label), is_of_all)) != 1:
        raise click.UsageError("name one of JOB, --label and --all")
    ledger = context.ledger
    zone = ledger.spec(job).zone if job else ZoneInfo("UTC")
    moment = moment_of(until, zone, ledger.now())
    made = control.silence(
        ledger, job or "", label, until=moment, duration=duration, by=context.actor, reason=reason
    )
    if as_json:
        print_done("silence", [shaped(made, "silenced")])
        return
    click.echo(f"{made.id}: {of(made)} silenced until {stamp(made.ends_at)}")


@click.command(epilog=examples("silences"))
@json_option
@pass_context
def silences(context: Context, as_json: bool) -> None:
    """List the silences of notices, the first to end first."""
    from supervisor.features.notices.silences import SilenceStore
    from supervisor.operate import shapes
    from supervisor.operate.tables import Columns
    from supervisor.operate.words import stamp

    found = SilenceStore(context.ledger).in_force(context.ledger.now())
    if as_json:
        print_json([shapes.Silence.dumped(each) for each in found])
        return
    rows = [
        (each.id, each.target, stamp(each.ends_at), each.by, each.reason, stamp(each.begins_at))
        for each in found
    ]
    columns = Columns.named(
        "id, of, until, by, reason, since", folds="reason", drops="since, by, reason"
    )
    print_table(columns, rows)


@click.command(epilog=examples("unsilence import-orders", "unsilence all"))
@click.argument("target", metavar="ID|JOB|LABEL|all")
@reason_option
@json_option
@pass_context
def unsilence(context: Context, target: str, reason: str, as_json: bool) -> None:
    """End a silence before its time.

    By its id, or all that were made for this job, this label, or all. What still fails is
    notified of.
    """
    from supervisor.operate import control

    ended = control.unsilence(context.ledger, target, by=context.actor, reason=reason)
    if as_json:
        print_done("unsilence", [shaped(each, "ended") for each in ended])
        return
    for each in ended:
        click.echo(f"{each.id}: {of(each)} no longer silenced")


def of(silence: Silence) -> str:
    """``nightly``, ``jobs with tenant=acme``, ``all jobs and the service``"""
    if silence.is_of_all:
        return "all jobs and the service"
    return silence.job or f"jobs with {silence.label}"


def shaped(silence: Silence, state: str) -> dict[str, object]:
    from supervisor.operate import shapes

    return {"name": silence.target, "state": state, **shapes.Silence.dumped(silence)}
