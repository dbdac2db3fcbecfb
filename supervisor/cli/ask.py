"""Verbs that explain: why, doctor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from supervisor.cli.common import Context, Failure, pass_context, print_json
from supervisor.cli.completion import jobs_and_runs
from supervisor.errors import UnknownJob
from supervisor.job.run import Blocker
from supervisor.ledger.ledger import Ledger
from supervisor.operate.doctor import APP_CHECKS, CHECKS, Finding, examine
from supervisor.operate.doctor_facts import DoctorFacts, read
from supervisor.operate.record import removal_words
from supervisor.operate.shapes import harmless, instant, run_shape, step_shape
from supervisor.operate.tables import surprise_shape
from supervisor.operate.why import answer
from supervisor.operate.why_facts import (
    Calendar,
    Facts,
    RunFacts,
    facts_of_job,
    facts_of_run_id,
    facts_of_tick,
    nominal_time,
)
from supervisor.operate.words import LocalTime

# doctor


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@pass_context
def doctor(context: Context, as_json: bool) -> None:
    """Find what is wrong with Redis, beats, workers and queues, and say what to do about it.

    With -A, also checks the app's settings, its broker, and RedBeat's entries. Exits 1 if anything
    is wrong; notes do not count.
    """
    facts = facts_of(context)
    findings = examine(facts)
    if as_json:
        print_json([shape(finding) for finding in findings])
    else:
        print_findings(findings, len(CHECKS) + (len(APP_CHECKS) if facts.app else 0))
    if any(not finding.is_note for finding in findings):
        sys.exit(1)


def facts_of(context: Context) -> DoctorFacts:
    ledger = context.ledger
    app = context.app
    if app is None:
        return read(ledger)
    from supervisor.beat.app_facts import app_facts
    from supervisor.sending.app_settings import settings_of
    from supervisor.sending.queues import AppQueues

    broker = AppQueues(app) if settings_of(app) else None
    return read(ledger, lambda specs: app_facts(app, ledger, specs), broker)


def print_findings(findings: Sequence[Finding], checks: int) -> None:
    for finding in findings:
        click.echo(f"{'note ' if finding.is_note else 'WRONG'}  {harmless(finding.what)}")
        click.echo(f"       why  {harmless(finding.why)}")
        click.echo(f"       do   {harmless(finding.todo)}")
    wrong = sum(not finding.is_note for finding in findings)
    notes = len(findings) - wrong
    click.echo(f"{checks} checks: {wrong} wrong, {notes} to note")


def shape(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "wrong": not finding.is_note,
        "what": finding.what,
        "why": finding.why,
        "todo": finding.todo,
    }


# why


def answer_shape(facts: Facts, sentences: Sequence[str]) -> dict[str, Any]:
    return {
        "job": facts.job.spec.name,
        "nominal_at": instant(facts.at),
        "sentences": list(sentences),
        "facts": facts_shape(facts),
    }


def facts_shape(facts: Facts) -> dict[str, Any]:
    job, beat = facts.job, facts.beat
    return {
        "now": instant(facts.now),
        "watermark": instant(facts.watermark),
        "run": found_shape(facts.run) if facts.run else None,
        "other_runs": [run_shape(run) for run in facts.others],
        "open_runs": [found_shape(found) for found in facts.open_runs],
        "schedule": calendar_shape(facts.calendar) if facts.calendar else None,
        "paused": job.paused,
        "paused_at": instant(facts.paused_at),
        "paused_note": job.paused_note,
        "paused_until": instant(job.paused_until),
        "beat_leads": facts.beat_leads,
        "beat_last_tick_at": instant(beat.last_tick_at),
        "problems": list(beat.problems),
        "nothing_begins_until": instant(facts.grace_until),
        "oldest_nominal_at": instant(facts.oldest_at),
    }


def found_shape(found: RunFacts) -> dict[str, Any]:
    usual, then = found.usual, found.run.blocker
    no_beat, workers = found.no_beat, found.workers
    return run_shape(found.run) | {
        "admitted_at": instant(found.admitted_at),
        "queue": found.queue,
        "duplicates": found.run.duplicates,
        "note": found.run.note,
        "no_beat_from": instant(no_beat.start) if no_beat else None,
        "no_beat_until": instant(no_beat.end) if no_beat else None,
        "crew": workers and {"workers": workers.count, "processes": workers.processes},
        "usual": usual and {"p95_seconds": usual.p95, "attempts": usual.attempts},
        "steps": [step_shape(step) for step in found.steps],
        "blocker_then": blocker_shape(then) if then else None,
        "blocker": found_shape(found.blocker) if found.blocker else None,
    }


def blocker_shape(then: Blocker) -> dict[str, Any]:
    return {
        "at": instant(then.at),
        "state": then.state,
        "attempt": then.attempt,
        "fencing_token": then.fencing_token,
        "lease_ends_at": instant(then.lease_ends_at),
    }


def calendar_shape(calendar: Calendar) -> dict[str, Any]:
    surprise = calendar.surprise
    return {
        "is_tick": calendar.is_tick,
        "is_excluded": calendar.excluded,
        "before": instant(calendar.before),
        "after": instant(calendar.after),
        "clock_change": surprise_shape(surprise) if surprise else None,
    }


@click.command()
@click.argument("job", shell_complete=jobs_and_runs)
@click.argument("time", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: sentences and facts.")
@pass_context
def why(context: Context, job: str, time: str | None, as_json: bool) -> None:
    """Explain what became of a tick, or why a job is not running.

    TIME: a nominal time in the job's zone, 09:05 (today's, else yesterday's) or 2026-03-01T09:05,
    or the id of a run. Without it: the job as it is now.
    """
    facts = facts_for(context.ledger, job, time)
    sentences = answer(facts)
    if as_json:
        print_json(answer_shape(facts, sentences))
        return
    click.echo(headline(facts))
    for sentence in sentences:
        click.echo(f"  {harmless(sentence)}")


def facts_for(ledger: Ledger, job: str, time: str | None) -> Facts:
    if time is None and "@" in job:
        return facts_of_run_id(ledger, job)
    if time and "@" in time:
        facts = facts_of_run_id(ledger, time)
        if facts.job.spec.name != job:
            raise click.UsageError(f"{time} is a run of {facts.job.spec.name}")
        return facts
    try:
        spec = ledger.spec(job)
    except UnknownJob as error:
        words = removal_words(ledger, job)
        removed = f"; {words}" if words else ""
        raise Failure(f"{error}{removed}{problems_of(ledger)}", error.exit_code) from error
    if time is None:
        return facts_of_job(ledger, job)
    try:
        at = nominal_time(time, spec, ledger.now())
    except ValueError:
        text = f"{time!r} is not a time such as 09:05 or 2026-03-01T09:05, nor a run"
        raise click.UsageError(text) from None
    return facts_of_tick(ledger, job, at)


def problems_of(ledger: Ledger) -> str:
    """A job may be unknown because its file was rejected."""
    problems = ledger.beat().problems
    if not problems:
        return ""
    return "; the schedule files have problems and were not loaded:\n" + "\n".join(problems)


def headline(facts: Facts) -> str:
    """``import-orders at 2026-11-20 09:05 CET``"""
    local = LocalTime(facts.now, facts.job.spec.zone)
    at = facts.at or facts.now
    return f"{facts.job.spec.name} {'at' if facts.at else 'now,'} {local.full(at)}"
