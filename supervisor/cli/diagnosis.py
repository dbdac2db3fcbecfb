"""Verbs that explain and diagnose: doctor, why, log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from supervisor.cli.common import (
    CommandFailed,
    Context,
    MomentText,
    MomentType,
    coloured,
    examples,
    json_option,
    moment_of,
    pass_context,
    print_json,
    print_table,
)
from supervisor.errors import UnknownJob

if TYPE_CHECKING:
    from supervisor.ledger.ledger import Ledger
    from supervisor.operate.deployment import Deployment
    from supervisor.operate.doctor import Finding
    from supervisor.operate.question import Question

# doctor


@click.command(epilog=examples("doctor", "-A proj doctor"))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@pass_context
def doctor(context: Context, as_json: bool) -> None:
    """Find what is wrong with Redis, beats, workers and queues.

    Each finding says why, and what to do about it. With -A, also checks the app's settings, its
    broker, and RedBeat's entries. While the ledger is unavailable, checks only what does not need
    it. Exits 1 if anything is wrong; notes do not count.
    """
    from redis.exceptions import RedisError

    from supervisor.operate.deployment import setup_of
    from supervisor.operate.doctor import APP_CHECKS, CHECKS, examine, examine_app

    app = context.app
    try:
        deployment = deployment_of(context)
    except RedisError:  # reported on standard error
        if app is not None:
            show_findings(examine_app(setup_of(app, None)), len(APP_CHECKS), as_json=as_json)
        raise
    findings = examine(deployment)
    checks = len(CHECKS) + (len(APP_CHECKS) if deployment.app else 0)
    show_findings(findings, checks, as_json=as_json)
    if any(not finding.is_note for finding in findings):
        sys.exit(1)


def deployment_of(context: Context) -> Deployment:
    from supervisor.operate.deployment import read, setup_of

    ledger = context.ledger
    app = context.app
    if app is None:
        return read(ledger)
    from supervisor.sending.app_settings import settings_of
    from supervisor.sending.queues import AppQueues

    deployment = read(ledger, AppQueues(app) if settings_of(app) else None)
    return replace(deployment, app=setup_of(app, ledger))


def show_findings(findings: Sequence[Finding], checks: int, *, as_json: bool) -> None:
    from supervisor.operate.words import harmless

    if as_json:
        print_json([finding_shape(finding) for finding in findings])
        return
    for finding in findings:
        click.echo(coloured(f"{'note ' if finding.is_note else 'WRONG'}  {harmless(finding.what)}"))
        click.echo(f"       why  {harmless(finding.why)}")
        click.echo(f"       do   {harmless(finding.todo)}")
    wrong = sum(not finding.is_note for finding in findings)
    notes = len(findings) - wrong
    click.echo(f"{checks} checks: {wrong} wrong, {notes} to note")


def finding_shape(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "wrong": not finding.is_note,
        "what": finding.what,
        "why": finding.why,
        "todo": finding.todo,
    }


# why


def answer_shape(question: Question, sentences: Sequence[str]) -> dict[str, Any]:
    from supervisor.operate import shapes
    from supervisor.operate.shapes import iso_utc

    return {
        "job": question.job.spec.name,
        "nominal_at": iso_utc(question.at),
        "sentences": list(sentences),
        "run": shapes.Run.dumped(question.run.run) if question.run else None,
        "open_runs": [view.run.id for view in question.open_runs],
    }


@click.command(epilog=examples("why nightly", "why nightly 02:00", "why nightly 2026-03-01T02:00"))
@click.argument("job")
@click.argument("time", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the sentences and the run.")
@pass_context
def why(context: Context, job: str, time: str | None, as_json: bool) -> None:
    """Explain what happened at a time, or why a job does not run.

    TIME is a nominal time in the job's time zone, as 09:05 (today, else yesterday) or
    2026-03-01T09:05, or the id of a run. Without TIME, explains the present state of the job.
    """
    from supervisor.operate.why import answer
    from supervisor.operate.words import harmless

    question = question_for(context.ledger, job, time)
    sentences = answer(question)
    if as_json:
        print_json(answer_shape(question, sentences))
        return
    click.echo(headline(question))
    for sentence in sentences:
        click.echo(f"  {harmless(sentence)}")


def question_for(ledger: Ledger, job: str, time: str | None) -> Question:
    from supervisor.operate.question import (
        nominal_time,
        question_of_job,
        question_of_run,
        question_of_tick,
    )
    from supervisor.operate.words import removal_words

    if time is None and is_run(ledger, job):
        return question_of_run(ledger, job)
    if time and is_run(ledger, time):
        question = question_of_run(ledger, time)
        if question.job.spec.name != job:
            raise click.UsageError(f"{time} is a run of {question.job.spec.name}")
        return question
    try:
        spec = ledger.spec(job)
    except UnknownJob as error:
        words = removal_words(ledger, job)
        removed = f"; {words}" if words else ""
        raise CommandFailed(f"{error}{removed}{problems_of(ledger)}", error.exit_code) from error
    if time is None:
        return question_of_job(ledger, job)
    try:
        at = nominal_time(time, spec, ledger.now())
    except ValueError:
        text = f"{time!r} is not a time such as 09:05 or 2026-03-01T09:05, nor a run"
        raise click.UsageError(text) from None
    return question_of_tick(ledger, job, at)


def is_run(ledger: Ledger, named: str) -> bool:
    """Whether this is the id of a run, as JOB@TIME is; a call may have one of its own."""
    return "@" in named or bool(ledger.runs([named]))


def problems_of(ledger: Ledger) -> str:
    """A job may be unknown because beat refused its file."""
    problems = ledger.beat().problems
    if not problems:
        return ""
    return "; the schedule files have problems and were not loaded:\n" + "\n".join(problems)


def headline(question: Question) -> str:
    """``import-orders at 2026-11-20 09:05 CET``"""
    from supervisor.operate.words import LocalTime

    local = LocalTime(question.now, question.job.spec.zone)
    at = question.at or question.now
    return f"{question.job.spec.name} {'at' if question.at else 'now,'} {local.full(at)}"


# log: the record of actions


@click.command(epilog=examples("log --job 'report-*' --since 2d", "log --by ann --json"))
@click.option("--job", help="Only actions on this job, or on all that match: 'report-*'.")
@click.option(
    "--by", help="Only actions by this name or system user, or by all that match: 'deploy-*'."
)
@click.option("--verb", help="Only this action: trigger, cancel, pause, put, apply, login ...")
@click.option(
    "--since", type=MomentType(), help="Only actions from then on: 2d (ago), 09:05, 2026-03-01."
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="Show up to this many actions.",
)
@json_option
@pass_context
def log(
    context: Context,
    job: str | None,
    by: str | None,
    verb: str | None,
    since: MomentText | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show who did what, from where, and why.

    Lists the record of actions, newest first. Times are in UTC. `serve` logs each new one.
    """
    from supervisor.ledger.actions import ActionQuery
    from supervisor.operate import shapes
    from supervisor.operate.tables import ACTION_COLUMNS, action_row

    ledger = context.ledger
    moment = moment_of(since, ZoneInfo("UTC"), ledger.now())
    search = ActionQuery(job=job, by=by, verb=verb, since=moment, limit=limit)
    entries = ledger.actions.search(search)
    if as_json:
        print_json([shapes.RecordedAction.dumped(entry) for entry in entries])
    else:
        print_table(ACTION_COLUMNS, [action_row(entry) for entry in entries])
