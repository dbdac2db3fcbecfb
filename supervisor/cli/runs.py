"""Verbs about jobs and their runs: jobs, runs, show, trigger, cancel."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from supervisor import control
from supervisor.cli.context import Context, pass_context
from supervisor.cli.live import watch_jobs
from supervisor.cli.output import print_json, print_table
from supervisor.cli.showing import print_whole, whole_shape
from supervisor.cli.types import DurationType, MomentType, Named, moment_of
from supervisor.display.reports import harmless, progress_words
from supervisor.display.rows import JOB_COLUMNS, RUN_COLUMNS, job_row, run_rows, why
from supervisor.display.shapes import job_shape, run_shape
from supervisor.display.steps import at_work_words
from supervisor.display.words import drained_words
from supervisor.job.overlap import OverlapPolicy
from supervisor.ledger.requests import RunRequest
from supervisor.ledger.searching import Wanted, search
from supervisor.runs.run import RunState

if TYPE_CHECKING:
    from supervisor.ledger.runs import Ledger
    from supervisor.runs.run import Run

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.option("--watch", "watches", is_flag=True, help="Draw it anew each second, until Ctrl-C.")
@json_option
@pass_context
def jobs(context: Context, watches: bool, as_json: bool) -> None:
    """List the loaded jobs: next run, last run, state, counts."""
    if watches and as_json:
        raise click.UsageError("--watch shows jobs to people; leave out --json")
    if watches:
        watch_jobs(context.ledger)
        return
    records = context.ledger.jobs()
    if as_json:
        print_json([job_shape(record) for record in records])
        return
    now = datetime.now(UTC)
    print_table(JOB_COLUMNS, [job_row(record, now) for record in records])
    for queue, since in context.ledger.drains.since().items():
        click.echo(drained_words(queue, since))


@click.command()
@click.argument("job", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="At most so many runs, newest first, of those that match.",
)
@click.option("--outcome", type=click.Choice([state.value for state in RunState]))
@click.option("--since", type=MomentType(), help="Admitted since: 2h (ago), 06:00, 2026-03-01.")
@click.option("--until", type=MomentType(), help="Admitted until then.")
@json_option
@pass_context
def runs(
    context: Context,
    job: str | None,
    limit: int,
    outcome: str | None,
    since: Named | None,
    until: Named | None,
    as_json: bool,
) -> None:
    """List the latest runs, of all jobs or of one: a line for each attempt.

    Times without an offset are in the job's zone, and for all jobs in UTC.
    """
    ledger = context.ledger
    spec = ledger.spec(job) if job else None
    zone, asked_at = spec.zone if spec else ZoneInfo("UTC"), ledger.now()
    wanted = Wanted(
        outcome=RunState(outcome) if outcome else None,
        since=moment_of(since, zone, asked_at),
        until=moment_of(until, zone, asked_at),
        limit=limit,
    )
    found = search(ledger, [spec.name] if spec else ledger.job_names(), wanted)
    if as_json:
        print_json([run_shape(run) for run in found])
        return
    now = datetime.now(UTC)
    how_far = {run.id: how_far_words(ledger, run) for run in found if run.state.is_open}
    rows = (row for run in found for row in run_rows(run, now, how_far.get(run.id, "")))
    print_table(RUN_COLUMNS, list(rows))


@click.command()
@click.argument("run")
@click.option("--follow", "follows", is_flag=True, help="Until it has ended. Exit 1 if it failed.")
@json_option
@pass_context
def show(context: Context, run: str, follows: bool, as_json: bool) -> None:
    """Show all that is known of one run, and the end of its log; or follow it."""
    if follows and as_json:
        raise click.UsageError("--follow shows a run to people; leave out --json")
    if follows:
        sys.exit(exit_status_of_followed(context.ledger, run))
    if as_json:
        print_json(whole_shape(context.ledger, run))
    else:
        print_whole(context.ledger, run)


def how_far_words(ledger: Ledger, run: Run) -> str:
    if run.has_steps:
        return at_work_words(ledger.steps.records(run.id))
    return progress_words(run.progress)


def exit_status_of_followed(ledger: Ledger, run: str) -> int:
    from supervisor.cli.following import follow

    try:
        return 0 if follow(ledger, run).state is RunState.SUCCEEDED else 1
    except KeyboardInterrupt:
        return 1


@click.command()
@click.argument("job")
@click.option("--args", "args_text", help="Positional arguments, a JSON list.")
@click.option("--kwargs", "kwargs_text", help="Keyword arguments, a JSON object.")
@click.option("--params", "params_text", help="What the steps begin with, a JSON object.")
@click.option("--overlap", type=click.Choice([word.value for word in OverlapPolicy]))
@click.option("--key", help="The lock's key, in place of the job's.")
@click.option("--max-wait", type=DurationType(), help="How long to wait for the lock: 90s, 5m.")
@json_option
@pass_context
def trigger(
    context: Context,
    job: str,
    args_text: str | None,
    kwargs_text: str | None,
    params_text: str | None,
    overlap: str | None,
    key: str | None,
    max_wait: timedelta | None,
    as_json: bool,
) -> None:
    """Run a job now, paused or not, under its overlap policy or another. Exit 1 if skipped."""
    request = RunRequest(
        args=parsed("--args", args_text, list),
        kwargs=parsed("--kwargs", kwargs_text, dict),
        params=parsed("--params", params_text, dict),
        overlap=OverlapPolicy(overlap) if overlap else None,
        key=key,
        max_wait=max_wait,
    )
    run = control.trigger(context.ledger, job, request)
    if as_json:
        print_json(run_shape(run))
    else:
        reason = harmless(why(run))
        click.echo(f"{run.id} {run.state.value}" + (f": {reason}" if reason else ""))
    if run.state is RunState.SKIPPED:
        sys.exit(1)


@click.command()
@click.argument("run")
@pass_context
def cancel(context: Context, run: str) -> None:
    """End a run, or RUN/STEP: at once, or within its `stop_grace` when it is at work.

    Exit 4 if it has ended.
    """
    click.echo(f"{run} {control.cancel(context.ledger, run).value}")


def parsed(option: str, text: str | None, kind: type) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from error
    if not isinstance(value, kind):
        what = "a list" if kind is list else "an object"
        raise click.BadParameter(f"must be {what}", param_hint=option)
    return value


VERBS: tuple[click.Command, ...] = (jobs, runs, show, trigger, cancel)
