"""Verbs about nominal times: next, backfill, pause, resume."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from supervisor.cli.common import (
    Context,
    MomentText,
    MomentType,
    examples,
    json_option,
    moment_of,
    pass_context,
    print_done,
    print_json,
    print_table,
    progress,
    reason_option,
)
from supervisor.job.policies import OverlapPolicy

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec
    from supervisor.operate.planning import Upcoming


@click.command("next", epilog=examples("next nightly", "next nightly -n 3 --after 2026-10-24"))
@click.argument("job")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="List this many times.",
)
@click.option(
    "--after", type=MomentType(ahead=True), help="From then on instead of now: 2h, 2026-03-01."
)
@json_option
@pass_context
def next_ticks(
    context: Context, job: str, count: int, after: MomentText | None, as_json: bool
) -> None:
    """List the next nominal times of a job.

    Also lists those that are excluded, and the effects of clock changes.
    """
    from supervisor.operate.planning import upcoming
    from supervisor.operate.plans import clock_change_shape, clock_change_text
    from supervisor.operate.shapes import iso_utc
    from supervisor.operate.tables import Columns
    from supervisor.operate.words import harmless, pause_words

    spec = scheduled(context, job)
    record = context.ledger.job(job)
    now = context.ledger.now()
    coming = upcoming(spec, moment_of(after, spec.zone, now) or now, count)
    if as_json:
        print_json(
            {
                "ticks": [iso_utc(tick) for tick in coming.ticks],
                "excluded": [iso_utc(tick) for tick in coming.excluded],
                "clock_changes": [clock_change_shape(change) for change in coming.clock_changes],
            }
        )
        return
    columns = Columns(("nominal time", spec.timezone, ""))
    print_table(columns, rows(coming, spec.zone))
    for change in coming.clock_changes:
        click.echo(clock_change_text(change))
    if not coming.ticks:
        click.echo("no more ticks", err=True)
    if record.paused:
        why = pause_words(record.paused_note, record.paused_until)
        click.echo(f"{job} is paused" + (f": {harmless(why)}" if why else ""), err=True)


def scheduled(context: Context, job: str) -> JobSpec:
    """Raises UsageError for a job without a schedule, and UnknownJob."""
    spec = context.ledger.spec(job)
    if not spec.has_schedule:
        raise click.UsageError(f"{job} has no schedule: it runs {spec.schedule}")
    return spec


def rows(coming: Upcoming, zone: ZoneInfo) -> list[tuple[str, str, str]]:
    from supervisor.operate.shapes import iso_utc

    marked = [*((tick, "") for tick in coming.ticks), *((at, "excluded") for at in coming.excluded)]
    return [
        (iso_utc(at) or "", at.astimezone(zone).strftime("%a %Y-%m-%d %H:%M:%S %Z"), mark)
        for at, mark in sorted(marked)
    ]


@click.command(
    "backfill",
    epilog=examples(
        "backfill nightly --from 2026-03-01 --to 2026-03-08 --dry-run",
    ),
)
@click.argument("job")
@click.option("--from", "start", type=MomentType(), required=True, help="The first nominal time.")
@click.option("--to", "end", type=MomentType(), required=True, help="The end, not included.")
@click.option(
    "--overlap",
    metavar="POLICY",
    type=click.Choice([word.value for word in OverlapPolicy]),
    default=OverlapPolicy.QUEUE_ALL.value,
    show_default=True,
    help=f"Overlap policy of these runs: {', '.join(OverlapPolicy)}.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Refuse more than this many runs.",
)
@click.option("--dry-run", is_flag=True, help="Only list the nominal times.")
@reason_option
@json_option
@pass_context
def backfill_ticks(
    context: Context,
    job: str,
    start: MomentText,
    end: MomentText,
    overlap: str,
    limit: int,
    dry_run: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Run a job for nominal times in the past.

    By default one after another, and even if the job is paused. Times without an offset are in the
    job's time zone. Exits 4 if there are more than --limit.
    """
    from supervisor.operate import control
    from supervisor.operate.shapes import iso_utc
    from supervisor.operate.words import plural

    spec = scheduled(context, job)
    now = context.ledger.now()
    first, last = start.at(spec.zone, now), end.at(spec.zone, now)
    ticks = control.backfill_times(spec, first, last, now, limit)
    if dry_run and as_json:
        results = (result(spec.name, "planned", None, tick) for tick in ticks)
        print_done("backfill", results, done=False)
        return
    if dry_run:
        for tick in ticks:
            click.echo(iso_utc(tick))
        return
    policy, by = OverlapPolicy(overlap), context.actor
    with progress(f"queuing {plural(len(ticks), 'run')}"):
        admissions = control.backfill_ticks(
            context.ledger, spec, ticks, policy, by=by, reason=reason
        )
    if as_json:
        placed = zip(admissions, ticks, strict=True)
        results = (result(a.run_id, a.placement.value, a.reason, tick) for a, tick in placed)
        print_done("backfill", results)
        return
    placements = Counter(admission.placement.value for admission in admissions)
    counts = ", ".join(f"{count} {placement}" for placement, count in sorted(placements.items()))
    click.echo(f"{len(ticks)} nominal times: {counts or 'none'}")


def result(name: str, state: str, reason: str | None, tick: datetime) -> dict[str, Any]:
    from supervisor.operate.shapes import iso_utc

    return {"name": name, "state": state, "reason": reason, "nominal_at": iso_utc(tick)}


# pause, resume


@click.command(epilog=examples("pause nightly --until 06:00 --reason 'the mail server moves'"))
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--until",
    type=MomentType(ahead=True),
    help="Resume the jobs at this time: 1h (from now), 06:00, 2026-03-01T06:00.",
)
@click.option(
    "--reason",
    "--note",
    "reason",
    default="",
    help="Why: shown with the job, and kept in the record of actions.",
)
@json_option
@pass_context
def pause(
    context: Context,
    names: tuple[str, ...],
    until: MomentText | None,
    reason: str,
    as_json: bool,
) -> None:
    """Stop scheduled runs until the jobs are resumed.

    `trigger` still works.
    """
    from supervisor.operate import control
    from supervisor.operate.shapes import iso_utc

    ledger, by = context.ledger, context.actor
    now, results = ledger.now(), []
    with context.acting("pause", ", ".join(names), reason, names):
        specs = [ledger.spec(name) for name in names]
    for spec in specs:
        until_then = moment_of(until, spec.zone, now)
        moment = control.pause(ledger, spec.name, until_then, by=by, reason=reason)
        end = moment and moment.astimezone(spec.zone).isoformat(timespec="seconds")
        until_when = f" until {end}" if end else ""
        click.echo(f"{spec.name} paused{until_when}", err=as_json)
        results.append(
            {"name": spec.name, "state": "paused", "note": reason, "until": iso_utc(moment)}
        )
    if as_json:
        print_done("pause", results)


@click.command(epilog=examples("resume nightly", "resume nightly --catch-up"))
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--catch-up",
    is_flag=True,
    help="Also run the ticks of the pause, as `catchup` says for an outage.",
)
@reason_option
@json_option
@pass_context
def resume(
    context: Context, names: tuple[str, ...], catch_up: bool, reason: str, as_json: bool
) -> None:
    """Start scheduled runs of paused jobs again, from now on."""
    from supervisor.operate import control

    results, ledger, by = [], context.ledger, context.actor
    with context.acting("resume", ", ".join(names), reason, names):
        specs = [ledger.spec(name) for name in names]
    paused = {record.spec.name for record in ledger.records_of(specs) if record.paused}
    for spec in specs:
        caught_up = control.resume(ledger, spec.name, catch_up=catch_up, by=by, reason=reason)
        words = f"{spec.name} resumed" + (f", {caught_up} caught up" if catch_up else "")
        words = words if spec.name in paused else f"{spec.name} was not paused"
        click.echo(words, err=as_json)
        results.append({"name": spec.name, "state": "resumed", "caught_up": caught_up})
    if as_json:
        print_done("resume", results)
