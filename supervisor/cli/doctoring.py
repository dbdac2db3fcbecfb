"""The verb that says what is wrong with a deployment: doctor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from supervisor.checkup.checks import CHECKS, examine
from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding
from supervisor.checkup.reading import read
from supervisor.cli.context import Context, pass_context
from supervisor.cli.output import print_json, printable


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@pass_context
def doctor(context: Context, as_json: bool) -> None:
    """Say what is wrong with Redis, beats, workers and queues, and what to do about it.

    With -A also with the app's settings, its broker, and RedBeat's entries. Exits 1 if anything is
    wrong; notes do not count.
    """
    findings = examine(facts_of(context))
    if as_json:
        print_json([shape(finding) for finding in findings])
    else:
        print_findings(findings)
    if any(not finding.is_note for finding in findings):
        sys.exit(1)


def facts_of(context: Context) -> Facts:
    ledger = context.ledger
    app = context.app
    if app is None:
        return read(ledger)
    from supervisor.app import settings_of
    from supervisor.beat.app_facts import app_facts
    from supervisor.sending.queues import AppQueues

    broker = AppQueues(app) if settings_of(app) else None
    return read(ledger, lambda specs: app_facts(app, ledger, specs), broker)


def print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        click.echo(f"{'note ' if finding.is_note else 'WRONG'}  {printable(finding.what)}")
        click.echo(f"       why  {printable(finding.why)}")
        click.echo(f"       do   {printable(finding.todo)}")
    wrong = sum(not finding.is_note for finding in findings)
    notes = len(findings) - wrong
    click.echo(f"{len(CHECKS)} checks: {wrong} wrong, {notes} to note")


def shape(finding: Finding) -> dict[str, object]:
    facts = asdict(finding)
    return {"wrong": not facts.pop("is_note"), **facts}


VERBS: tuple[click.Command, ...] = (doctor,)
