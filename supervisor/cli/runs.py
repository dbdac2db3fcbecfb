"""Verbs about runs: runs, show, trigger, retry, cancel."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from supervisor.cli.common import (
    Context,
    DurationType,
    MomentText,
    MomentType,
    coloured,
    examples,
    json_option,
    moment_of,
    pass_context,
    print_done,
    print_json,
    print_table,
    reason_option,
)
from supervisor.errors import InvalidRequest, UnknownRun
from supervisor.job.policies import AfterPolicy, OverlapPolicy

if TYPE_CHECKING:
    from supervisor.job.run import RunState
    from supervisor.job.spec import JobSpec
    from supervisor.ledger.ledger import Ledger
    from supervisor.ledger.run_request import RunRequest
    from supervisor.operate import repeating


class StateType(click.ParamType):  # type: ignore[type-arg]
    """A state or an outcome of runs."""

    name = "state"

    def convert(self, value: Any, param: Any, ctx: Any) -> RunState:
        from supervisor.job.run import RunState

        try:
            return RunState(value)
        except ValueError:
            self.fail(f"{value!r} is none of {', '.join(RunState)}", param, ctx)


@click.command(epilog=examples("runs", "runs nightly --outcome failed --since 2d"))
@click.argument("job", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="List up to this many runs.",
)
@click.option(
    "--outcome",
    metavar="STATE",
    type=StateType(),
    help="Only runs in this state: running, succeeded, failed, lost, skipped ...",
)
@click.option(
    "--since", type=MomentType(), help="Only runs from then on: 2h (ago), 06:00, 2026-03-01."
)
@click.option("--until", type=MomentType(), help="Only runs up to then.")
@json_option
@pass_context
def runs(
    context: Context,
    job: str | None,
    limit: int,
    outcome: RunState | None,
    since: MomentText | None,
    until: MomentText | None,
    as_json: bool,
) -> None:
    """List the latest runs, of all jobs or of one.

    Newest first, with a line for each attempt. JOB may have been removed. Times without an offset
    are in the job's time zone; for all jobs, in UTC. --since and --until go by when a run was
    admitted.
    """
    from supervisor.ledger.page_reads import RunQuery, search
    from supervisor.operate import shapes
    from supervisor.operate.run_text import how_far
    from supervisor.operate.tables import RUN_COLUMNS, run_rows

    ledger = context.ledger
    spec = ledger.spec_or_last(job) if job else None
    zone, requested_at = spec.zone if spec else ZoneInfo("UTC"), ledger.now()
    filters = RunQuery(
        outcome=outcome,
        since=moment_of(since, zone, requested_at),
        until=moment_of(until, zone, requested_at),
        limit=limit,
    )
    matching = search(ledger, [spec.name] if spec else ledger.job_names(), filters)
    if as_json:
        print_json([shapes.Run.dumped(run) for run in matching])
        return
    now = datetime.now(UTC)
    progress = {run.id: how_far(ledger, run) for run in matching if run.state.is_open}
    rows = (row for run in matching for row in run_rows(run, now, progress.get(run.id, "")))
    print_table(RUN_COLUMNS, rows)


@click.command(
    epilog=examples(
        "show nightly@2026-03-01T02:00:00Z",
        "show nightly@2026-03-01T02:00:00Z --follow",
    ),
)
@click.argument("run")
@click.option(
    "--follow",
    "follows",
    is_flag=True,
    help="Print its log and progress until it ends; exit 1 unless it succeeds.",
)
@json_option
@pass_context
def show(context: Context, run: str, follows: bool, as_json: bool) -> None:
    """Show a run: attempts, steps, errors, the end of its log."""
    from supervisor.job.run import RunState
    from supervisor.operate import run_text
    from supervisor.operate.tables import STEP_COLUMNS

    if follows and as_json:
        raise click.UsageError("--follow prints text; leave out --json")
    ledger = context.ledger
    refuse_job(ledger, run, "show")
    if follows:
        try:
            for line in run_text.follow(ledger, run):
                click.echo(line)
        except KeyboardInterrupt:
            sys.exit(1)
        sys.exit(0 if ledger.run(run).state is RunState.SUCCEEDED else 1)
    record = run_text.run_of(ledger, run)
    if as_json:
        print_json(run_text.run_shape(ledger, record))
        return
    for line in run_text.field_lines(ledger, record):
        click.echo(coloured(line))
    if record.has_steps:
        print_table(STEP_COLUMNS, run_text.step_rows(ledger, record))
    for line in (*run_text.item_lines(ledger, record), *run_text.log_lines(ledger, record)):
        click.echo(line)


# trigger, cancel


@click.command(
    epilog=examples(
        "trigger nightly",
        "-A proj trigger nightly --kwargs '{\"day\": \"2026-03-01\"}' --reason 'late data'",
        "trigger nightly --at 22:00",
    ),
)
@click.argument("job")
@click.option("--args", "args_text", help="Positional arguments, a JSON list.")
@click.option("--kwargs", "kwargs_text", help="Keyword arguments, a JSON object.")
@click.option("--params", "params_text", help="Params of a job with steps, a JSON object.")
@click.option(
    "--overlap",
    metavar="POLICY",
    type=click.Choice([word.value for word in OverlapPolicy]),
    help=f"Overlap policy of this run: {', '.join(OverlapPolicy)}. Default: the job's.",
)
@click.option("--key", help="Key of this run's lock; default: the job's.")
@click.option("--max-wait", type=DurationType(), help="Longest wait for the lock: 90s, 5m.")
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    help="Priority of the message; 0 is first with Redis, 9 with RabbitMQ.",
)
@click.option(
    "--at", type=MomentType(ahead=True), help="Run at this time: 2h, 09:05, 2026-03-01T02:00."
)
@click.option("--after", metavar="RUN", help="Run once this run has ended.")
@click.option(
    "--after-policy",
    type=click.Choice([word.value for word in AfterPolicy]),
    default=AfterPolicy.SUCCESS.value,
    show_default=True,
    help="How that run must end; otherwise this one is skipped.",
)
@reason_option
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
    priority: int | None,
    at: MomentText | None,
    after: str | None,
    after_policy: str,
    reason: str,
    as_json: bool,
) -> None:
    """Run a job now or at a given time, even if it is paused.

    With --at, the run waits in the ledger until then; a time without an offset is in the job's time
    zone. With -A, arguments that the task does not take are refused. Exits 1 if the run is skipped.
    """
    from supervisor.job.run import RunState
    from supervisor.ledger.run_request import RunRequest
    from supervisor.operate import control, shapes
    from supervisor.operate.run_text import state_line

    request = RunRequest(
        args=parsed("--args", args_text, list),
        kwargs=parsed("--kwargs", kwargs_text, dict),
        params=parsed("--params", params_text, dict),
        overlap=OverlapPolicy(overlap) if overlap else None,
        key=key,
        max_wait=max_wait,
        options={} if priority is None else {"priority": priority},
        after=after,
        after_policy=AfterPolicy(after_policy),
    )
    ledger = context.ledger
    with context.acting("trigger", job, reason, (job,)):
        spec = ledger.spec(job)
        check_call(context, spec, request)
        moment = moment_of(at, spec.zone, ledger.now()) if at else None
    run = control.trigger(ledger, job, request, moment, by=context.actor, reason=reason)
    if as_json:
        print_done("trigger", [{"name": run.id, **shapes.Run.dumped(run)}])
    else:
        click.echo(state_line(run))
    if run.state is RunState.SKIPPED:
        sys.exit(1)


@click.command(
    epilog=examples(
        "retry nightly@2026-03-01T02:00:00Z",
        "retry --failed --job nightly --since 2d --reason 'the shop answers again'",
    ),
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--failed", is_flag=True, help="Instead of RUN: the failed runs of a job.")
@click.option("--job", help="With --failed: of this job.")
@click.option("--since", type=MomentType(), help="With --failed: only runs from then on: 2h (ago).")
@click.option(
    "--whole",
    is_flag=True,
    help="Of a run of several steps: all steps, not only those that did not succeed.",
)
@reason_option
@json_option
@pass_context
def retry(
    context: Context,
    runs: tuple[str, ...],
    failed: bool,
    job: str | None,
    since: MomentText | None,
    whole: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Run ended runs again, with the same arguments.

    RUN is the id of a run. The new run has the nominal time and the arguments of that run, even if
    the job has been edited since. Of a run of several steps, steps that succeeded are not run
    again. With --failed --job JOB, all failed runs of the job are run again, oldest first, except
    those that have been run again already. Exits 1 if one of them is skipped or refused.
    """
    from supervisor.job.run import RunState
    from supervisor.operate import repeating

    if failed == bool(runs) or failed != bool(job) or (since and not failed):
        raise click.UsageError("name one or more RUNs, or --failed --job JOB")
    ledger, run_ids, by = context.ledger, list(runs), context.actor
    if job:
        moment = moment_of(since, ledger.spec(job).zone, ledger.now())
        run_ids = repeating.failures_to_repeat(ledger, job, moment)
    if len(run_ids) == 1 and not failed:
        repeats = [repeating.retry(ledger, run_ids[0], whole=whole, by=by, reason=reason)]
    else:
        repeats = repeating.retry_each(ledger, run_ids, whole=whole, by=by, reason=reason)
    if as_json:
        print_done("retry", map(repeated_json, repeats))
    elif not repeats:
        click.echo(f"no failed run of {job} is left to run again")
    else:
        for one in repeats:
            click.echo(repeated_words(one))
    if any(one.run is None or one.run.state is RunState.SKIPPED for one in repeats):
        sys.exit(1)


def repeated_json(one: repeating.Repeated) -> dict[str, Any]:
    from supervisor.operate import shapes

    if one.run is None:
        return {"name": one.of, "state": "refused", "error": one.error}
    return {"name": one.run.id, "edited": one.is_edited, **shapes.Run.dumped(one.run)}


def repeated_words(one: repeating.Repeated) -> str:
    from supervisor.operate.run_text import state_line
    from supervisor.operate.words import harmless

    if one.run is None:
        return harmless(f"{one.of} is not run again: {one.error}")
    edited = ", with its arguments: the job has been edited since" if one.is_edited else ""
    return f"{state_line(one.run)}, repeats {one.of}{edited}"


@click.command(
    epilog=examples(
        "cancel nightly@2026-03-01T02:00:00Z --reason 'wrong day'",
        "cancel nightly@2026-03-01T02:00:00Z/load",
    ),
)
@click.argument("run")
@reason_option
@json_option
@pass_context
def cancel(context: Context, run: str, reason: str, as_json: bool) -> None:
    """Cancel a run, or one step of it.

    RUN is the id of a run, or RUN~STEP. A run that has not started ends at once. A running one is
    asked to stop, and killed after its `stop_grace`. Exits 4 if it has ended already.
    """
    from supervisor.operate import control

    refuse_job(context.ledger, run, "cancel")
    state = control.cancel(context.ledger, run, by=context.actor, reason=reason).value
    if as_json:
        print_done("cancel", [{"name": run, "state": state}])
    else:
        click.echo(f"{run} {state}")


def refuse_job(ledger: Ledger, named: str, verb: str) -> None:
    """Raises UnknownRun for the name of a job, with its runs, and for what is no run's id."""
    from supervisor.job.run import OPEN_STATES
    from supervisor.ledger.page_reads import RunQuery, search

    if "@" in named or ledger.runs([named]):  # a call may have an id of its own, as a task_id
        return
    if not ledger.some_specs([named]):
        raise UnknownRun(named, "the id of a run is JOB@TIME, and `supervisor runs` lists them")
    runs = search(ledger, [named], RunQuery(outcome=OPEN_STATES if verb == "cancel" else None))
    kind = "open run" if verb == "cancel" else "run"
    how = f"for its latest {kind}, supervisor {verb} {runs[0].id}" if runs else f"no {kind}"
    raise UnknownRun(named, f"that is a job, and `supervisor runs {named}` lists its runs; {how}")


def check_call(context: Context, spec: JobSpec, request: RunRequest) -> None:
    """With -A, raises InvalidRequest for arguments that the app's task does not take."""
    from supervisor.catalog.job_checks import call_faults

    if context.app is None:
        return
    from supervisor.app import tasks_of

    given = {"args": request.args, "kwargs": request.kwargs}
    call = spec.model_copy(update={key: v for key, v in given.items() if v is not None})
    if faults := [fault.text for fault in call_faults(call, tasks_of(context.app), is_run=True)]:
        raise InvalidRequest(f"{spec.name}: {'; '.join(faults)}")


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
