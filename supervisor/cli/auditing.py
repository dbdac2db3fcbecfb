"""The verb that proves that every tick has one outcome: audit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.output import print_json
from supervisor.cli.types import MomentType, Named, moment_of
from supervisor.display.shapes import instant
from supervisor.job.spec import JobSpec
from supervisor.ticks.auditing import INSTANT, Records, audit, compare_records


@click.command("audit")
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@click.option(
    "--from", "start", type=MomentType(), help="Also compare record by record, from here."
)
@click.option("--to", "end", type=MomentType(), help="The end of that, by default the last tick.")
@click.option("--acknowledge", is_flag=True, help="What was found is known: count it no longer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_context
def audit_ticks(
    context: Context,
    jobs: tuple[str, ...],
    start: Named | None,
    end: Named | None,
    acknowledge: bool,
    as_json: bool,
) -> None:
    """Derive the ticks anew and compare them with what was counted. Exit 1 if they differ.

    With --from each tick is looked for among the records, which go back `history` runs.
    """
    ledger = context.ledger
    specs = [ledger.spec(job) for job in jobs] or list(ledger.scheduled().values())
    specs = [spec for spec in specs if spec.has_schedule]
    audit(ledger, specs, ledger.now())
    records = compared(context, specs, start, end) if start else {}
    names = {spec.name for spec in specs}
    known = {job.spec.name: job for job in ledger.jobs() if job.spec.name in names}
    wrong = {name: job.unaccounted_ticks for name, job in known.items() if job.unaccounted_ticks}
    findings = {name: known[name].finding or {} for name in wrong}
    if as_json:
        shapes = {name: records_shape(found) for name, found in records.items()}
        print_json({"unaccounted_ticks": wrong, "findings": findings, "records": shapes})
    else:
        click.echo(f"{len(specs)} jobs audited, {len(wrong)} with findings")
        for line in lines(wrong, findings, records):
            click.echo(line)
    if acknowledge:
        for name in wrong:
            ledger.stretches.acknowledge(name)
    if wrong or any(found.missing or found.doubled for found in records.values()):
        sys.exit(1)


def compared(
    context: Context, specs: Sequence[JobSpec], start: Named | None, end: Named | None
) -> dict[str, Records]:
    marks = context.ledger.marks([spec.name for spec in specs])
    found, now = {}, context.ledger.now()
    for spec in specs:
        first, dealt_with = moment_of(start, spec.zone, now), marks[spec.name].watermark
        if first and dealt_with:
            dealt_with += INSTANT  # the tick itself included
            last = min(moment_of(end, spec.zone, now) or dealt_with, dealt_with)
            found[spec.name] = compare_records(context.ledger, spec, first, last)
    return found


def lines(
    wrong: Mapping[str, int],
    findings: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Records],
) -> Iterator[str]:
    for name, number in wrong.items():
        finding = findings[name]
        yield f"{name}: {number} ticks unaccounted for"
        if finding:
            yield (
                f"  the schedule names {finding['named']} from {finding['from']} to "
                f"{finding['to']}, {finding['counted']} were counted; {finding['overdue']} "
                f"overdue, {finding['unsettled']} without an outcome"
            )
            yield from (f"  missing: {at}" for at in finding["missing"])
    for name, found in records.items():
        yield f"{name}: {found.named} ticks, record by record since {instant(found.since)}"
        yield from (f"  missing: {instant(at)}" for at in found.missing)
        yield from (f"  doubled: {instant(at)}" for at in found.doubled)


def records_shape(found: Records) -> dict[str, Any]:
    return {
        "since": instant(found.since),
        "named": found.named,
        "missing": [instant(at) for at in found.missing],
        "doubled": [instant(at) for at in found.doubled],
    }


VERBS: tuple[click.Command, ...] = (audit_ticks,)
