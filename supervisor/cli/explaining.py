"""The verb that answers for a tick: why."""

from __future__ import annotations

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.output import Failure, print_json, printable
from supervisor.errors import UnknownJob
from supervisor.ledger.runs import Ledger
from supervisor.why.answer import answer
from supervisor.why.asked import nominal_time
from supervisor.why.facts import Facts
from supervisor.why.reading import facts_of_job, facts_of_run_id, facts_of_tick
from supervisor.why.shapes import answer_shape
from supervisor.why.wall import Wall


@click.command()
@click.argument("job")
@click.argument("time", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: sentences and facts.")
@pass_context
def why(context: Context, job: str, time: str | None, as_json: bool) -> None:
    """Say why a tick became what it became, or why a job is not at work.

    TIME: a nominal time by the job's clock, 09:05 (today's, or the last such) or
    2026-03-01T09:05, or the id of a run. Without it: the job as it is now.
    """
    facts = facts_for(context.ledger, job, time)
    sentences = answer(facts)
    if as_json:
        print_json(answer_shape(facts, sentences))
        return
    click.echo(headline(facts))
    for sentence in sentences:
        click.echo(f"  {printable(sentence)}")


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
        raise Failure(f"{error}{problems_of(ledger)}", error.exit_code) from error
    if time is None:
        return facts_of_job(ledger, job)
    try:
        at = nominal_time(time, spec, ledger.now())
    except ValueError:
        text = f"{time!r} is not a time such as 09:05 or 2026-03-01T09:05, nor a run"
        raise click.UsageError(text) from None
    return facts_of_tick(ledger, job, at)


def problems_of(ledger: Ledger) -> str:
    """A job may be unknown because its file has not been loaded."""
    problems = ledger.beat().problems
    if not problems:
        return ""
    return "; the schedule files have problems and were not loaded:\n" + "\n".join(problems)


def headline(facts: Facts) -> str:
    """``import-orders at 2026-11-20 09:05 CET``"""
    wall = Wall(facts.now, facts.job.spec.zone)
    at = facts.at or facts.now
    return f"{facts.job.spec.name} {'at' if facts.at else 'now,'} {wall.whole(at)}"


VERBS: tuple[click.Command, ...] = (why,)
