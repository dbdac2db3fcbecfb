"""Verbs about nominal times: next, backfill."""

from __future__ import annotations

from collections import Counter
from zoneinfo import ZoneInfo

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.output import print_json, print_table, printable
from supervisor.cli.types import MomentType, Named, moment_of
from supervisor.display.plans import surprise_shape, surprise_text
from supervisor.display.shapes import instant
from supervisor.display.tables import Columns
from supervisor.display.words import pause_words
from supervisor.job.overlap import OverlapPolicy
from supervisor.plan.upcoming import Upcoming, upcoming
from supervisor.ticks.backfilling import backfill, ticks_of

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("next")
@click.argument("job")
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option(
    "--after", type=MomentType(ahead=True), help="Start from here instead of now: 2h, 2026-03-01."
)
@json_option
@pass_context
def next_ticks(context: Context, job: str, count: int, after: Named | None, as_json: bool) -> None:
    """List the next nominal times of a job, what it excludes, and what clock changes do."""
    spec = context.ledger.spec(job)
    if not spec.has_schedule:
        raise click.UsageError(f"{job} has no schedule: code calls it")
    record = context.ledger.job(job)
    now = context.ledger.now()
    found = upcoming(spec, moment_of(after, spec.zone, now) or now, count)
    if as_json:
        print_json(
            {
                "ticks": [instant(tick) for tick in found.ticks],
                "excluded": [instant(tick) for tick in found.excluded],
                "clock_changes": [surprise_shape(surprise) for surprise in found.surprises],
            }
        )
        return
    columns = Columns(("nominal time", spec.timezone, ""))
    print_table(columns, rows(found, spec.zone))
    for surprise in found.surprises:
        click.echo(surprise_text(surprise))
    if not found.ticks:
        click.echo("no more ticks", err=True)
    if record.paused:
        told = pause_words(record.paused_note, record.paused_until)
        click.echo(f"{job} is paused" + (f": {printable(told)}" if told else ""), err=True)


def rows(found: Upcoming, zone: ZoneInfo) -> list[tuple[str, str, str]]:
    marked = [*((tick, "") for tick in found.ticks), *((at, "excluded") for at in found.excluded)]
    return [
        (instant(at) or "", at.astimezone(zone).strftime("%a %Y-%m-%d %H:%M:%S %Z"), mark)
        for at, mark in sorted(marked)
    ]


@click.command("backfill")
@click.argument("job")
@click.option("--from", "start", type=MomentType(), required=True, help="The first nominal time.")
@click.option("--to", "end", type=MomentType(), required=True, help="The end, itself not included.")
@click.option(
    "--overlap",
    type=click.Choice([word.value for word in OverlapPolicy]),
    default=OverlapPolicy.QUEUE_ALL.value,
    show_default=True,
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True)
@click.option("--dry-run", is_flag=True, help="Only list the nominal times.")
@pass_context
def backfill_ticks(
    context: Context, job: str, start: Named, end: Named, overlap: str, limit: int, dry_run: bool
) -> None:
    """Run a job for nominal times that have passed, one after the other, paused or not.

    Times without an offset are in the job's zone. Exit 1 when there are more than --limit.
    """
    spec = context.ledger.spec(job)
    if not spec.has_schedule:
        raise click.UsageError(f"{job} has no schedule: code calls it")
    now = context.ledger.now()
    first, last = start.at(spec.zone, now), end.at(spec.zone, now)
    if first >= last:
        raise click.UsageError("--from must be before --to")
    if last > now:
        raise click.UsageError("--to is in the future: those times will have runs of their own")
    ticks = ticks_of(spec, first, last, limit + 1)
    if len(ticks) > limit:
        raise click.ClickException(
            f"more than {limit} nominal times: raise --limit, or do it in parts"
        )
    if dry_run:
        for tick in ticks:
            click.echo(instant(tick))
        return
    admissions = backfill(context.ledger, spec, ticks, OverlapPolicy(overlap))
    placed = Counter(admission.placement.value for admission in admissions)
    told = ", ".join(f"{count} {placement}" for placement, count in sorted(placed.items()))
    click.echo(f"{len(ticks)} nominal times: {told or 'none'}")


VERBS: tuple[click.Command, ...] = (next_ticks, backfill_ticks)
