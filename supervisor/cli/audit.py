"""The verb audit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import (
    Context,
    MomentText,
    MomentType,
    examples,
    json_option,
    moment_of,
    pass_context,
    print_json,
    reason_option,
)

if TYPE_CHECKING:
    from supervisor.features.audit.step import Records
    from supervisor.job.spec import JobSpec


@click.command("audit", epilog=examples("audit", "audit nightly --from 7d"))
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@click.option(
    "--from", "start", type=MomentType(), help="Also look up each tick in the history, from here."
)
@click.option("--to", "end", type=MomentType(), help="Up to here; default: the last tick.")
@click.option(
    "--acknowledge",
    is_flag=True,
    help="Accept the findings: metrics and alerts no longer report them.",
)
@reason_option
@json_option
@pass_context
def audit_ticks(
    context: Context,
    jobs: tuple[str, ...],
    start: MomentText | None,
    end: MomentText | None,
    acknowledge: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Check that each scheduled time has exactly one outcome.

    Compares the ticks of the schedules with those counted, and exits 1 if they differ. Includes
    jobs that were removed within the last seven days. With --from, each tick is also looked up in
    the job's history, which goes back `history` runs.
    """
    from supervisor.features.audit.spans import AuditSpans
    from supervisor.features.audit.step import audit
    from supervisor.ledger.actions import Action, Change
    from supervisor.operate.words import plural

    ledger = context.ledger
    removed = ledger.removed()
    specs = [removed.get(job) or ledger.spec(job) for job in jobs]
    specs = specs or [*ledger.scheduled().values(), *removed.values()]
    specs = [spec for spec in specs if spec.has_schedule]
    if start is None and end is not None:
        raise click.UsageError("--to needs --from")
    audit(ledger, specs, ledger.now(), removed)
    records = compared(context, specs, start, end) if start else {}
    wrong_jobs = [job for job in ledger.records_of(specs) if job.unaccounted_ticks]
    wrong = {job.spec.name: job.unaccounted_ticks for job in wrong_jobs}
    findings = {job.spec.name: job.finding or {} for job in wrong_jobs}
    if as_json:
        shapes = {name: records_shape(each) for name, each in records.items()}
        print_json({"unaccounted_ticks": wrong, "findings": findings, "records": shapes})
    else:
        click.echo(f"{plural(len(specs), 'job')} audited, {len(wrong)} with findings")
        for line in lines(wrong, findings, records):
            click.echo(line)
    if acknowledge:
        for name in wrong:
            change = Change(name, "unaccounted_ticks", str(wrong[name]))
            by, jobs = context.actor, (name,)
            action = Action(by, "acknowledge", name, reason, jobs, changes=(change,))
            AuditSpans(ledger.functions).acknowledge(name, action)
    if wrong or any(each.missing or each.doubled for each in records.values()):
        sys.exit(1)


def compared(
    context: Context, specs: Sequence[JobSpec], start: MomentText | None, end: MomentText | None
) -> dict[str, Records]:
    from supervisor.features.audit.step import compare_records
    from supervisor.times import INSTANT

    marks = context.ledger.marks([spec.name for spec in specs])
    records, now = {}, context.ledger.now()
    for spec in specs:
        first, dealt_with = moment_of(start, spec.zone, now), marks[spec.name].watermark
        to = moment_of(end, spec.zone, now)
        if first and first >= min(to or now, now):
            raise click.UsageError("--from must be before now and before --to")
        if first and dealt_with:
            dealt_with += INSTANT  # the tick itself included
            last = min(to or dealt_with, dealt_with)
            records[spec.name] = compare_records(context.ledger, spec, first, last)
    return records


def lines(
    wrong: Mapping[str, int],
    findings: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Records],
) -> Iterator[str]:
    from supervisor.operate.shapes import iso_utc

    for name, number in wrong.items():
        finding = findings[name]
        yield f"{name}: {number} ticks unaccounted for"
        if finding:
            yield (
                f"  the schedule names {finding['named']} from {finding['from']} to "
                f"{finding['to']}, {finding['counted']} were counted; {finding['overdue']} "
                f"overdue, {finding['without_outcome']} without an outcome"
            )
            yield from (f"  missing: {at}" for at in finding["missing"])
    for name, each in records.items():
        yield f"{name}: {each.named} ticks, record by record since {iso_utc(each.since)}"
        yield from (f"  missing: {iso_utc(at)}" for at in each.missing)
        yield from (f"  doubled: {iso_utc(at)}" for at in each.doubled)


def records_shape(records: Records) -> dict[str, Any]:
    from supervisor.operate.shapes import iso_utc

    return {
        "since": iso_utc(records.since),
        "named": records.named,
        "missing": [iso_utc(at) for at in records.missing],
        "doubled": [iso_utc(at) for at in records.doubled],
    }
