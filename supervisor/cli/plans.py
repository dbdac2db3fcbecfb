"""Verbs for what schedule files would change or do: plan, apply, simulate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import click
from redis.exceptions import RedisError

from supervisor.cli.common import (
    Context,
    MomentType,
    Named,
    changed,
    json_option,
    moment_of,
    pass_context,
    print_done,
    print_json,
    print_table,
    reason_option,
)
from supervisor.cli.files import path_argument, print_problems, read_or_exit
from supervisor.errors import InvalidDuration, NotConfigured, did_you_mean
from supervisor.files.schedule_files import ScheduleSet
from supervisor.job.changes import difference
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action
from supervisor.ledger.reads import Loaded
from supervisor.ledger.records import FILES
from supervisor.operate.shapes import harmless
from supervisor.operate.tables import (
    QUEUE_COLUMNS,
    SIMULATED_COLUMNS,
    job_rows,
    plan_lines,
    plan_shape,
    queue_rows,
    summary,
    tally_shape,
)
from supervisor.operate.words import span
from supervisor.ticks.plan import Plan, clashes, mass_removal, plan_of
from supervisor.ticks.simulation import SimulatedJob, Tally, number_of_ticks, ticks_of
from supervisor.ticks.simulation import simulate as simulated
from supervisor.times import parse_duration


@click.command()
@path_argument
@json_option
@click.option("--exit-code", is_flag=True, help="Exit 1 if something would change.")
@pass_context
def plan(context: Context, path: Path | None, as_json: bool, exit_code: bool) -> None:
    """Show what loading the schedule files at PATH would change, and with what consequences.

    If the files have problems, lists them as `check` does, and exits 1.
    """
    wanted, loaded = read_or_exit(context, path, as_json), context.ledger.loaded()
    exit_if_clashing(loaded, wanted, as_json)
    found = plan_on(context, loaded.of(FILES), wanted)
    if as_json:
        print_json(plan_shape(found))
    else:
        show(found)
    warn_of_removal(loaded, wanted)
    warn_of_entries(context, found, wanted)
    if exit_code and found.changes:
        sys.exit(1)


@click.command()
@path_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--take-over", is_flag=True, help="Make this app the owner of the ledger.")
@reason_option
@json_option
@pass_context
def apply(
    context: Context, path: Path | None, yes: bool, take_over: bool, reason: str, as_json: bool
) -> None:
    """Load the schedule files at PATH now, as beat would. Prints the plan and asks first.

    Also files that remove more than half of the jobs, which beat does not load by itself.

    A ledger that belongs to another app is refused. --take-over is for an app that was renamed:
    beats of the other name stop.
    """
    # Where RedBeat's entries are written depends on the app's settings.
    if context.app is None:
        raise NotConfigured("name the Celery app: supervisor -A proj apply")
    from supervisor.beat.entries import Entries
    from supervisor.beat.load import load
    from supervisor.sending.app_settings import owner_of, required_settings

    required_settings(context.app)
    wanted, ledger = read_or_exit(context, path, as_json), context.ledger
    target = str(context.schedules(path))
    with context.acting("apply", target, reason):
        if not take_over:
            ledger.check_owner(owner_of(context.app))
    everything = ledger.loaded()
    exit_if_clashing(everything, wanted, as_json)
    loaded = everything.of(FILES)
    found = plan_on(context, loaded, wanted)
    if not as_json or not yes:
        show(found, err=as_json)
    warn_of_removal(everything, wanted)
    warn_of_entries(context, found, wanted)
    if not found.changes and not take_over:
        if as_json:
            print_done("apply", [], plan=plan_shape(found))
        return
    warn_of_beat(context, wanted)
    if not yes:
        click.confirm("Apply?", abort=True, err=True)
    if take_over:
        ledger.take_over(owner_of(context.app))
        ledger.actions.enter(Action(context.actor, "take over", owner_of(context.app), reason))
    entries = Entries(context.app, ledger.client, ledger.keys)
    now, seen, places = ledger.now(), loaded.specs, wanted.sources
    with context.acting("apply", target, reason) as action:
        done = load(ledger, entries, wanted.specs, wanted.digest, now, seen, places, action)
    click.echo(f"applied: {summary(done)}", err=as_json)
    if as_json:
        print_done("apply", changed(done), plan=plan_shape(found))


def exit_if_clashing(loaded: Loaded, wanted: ScheduleSet, as_json: bool) -> None:
    """With jobs whose names other sources have, prints all of them and exits 1."""
    if problems := clashes(loaded, wanted):
        print_problems(problems, as_json)
        sys.exit(1)


def warn_of_removal(loaded: Loaded, wanted: ScheduleSet) -> None:
    if removal := mass_removal(loaded, wanted.specs):
        click.echo(f"warning: {removal}: beat loads that only after `supervisor apply`", err=True)


def warn_of_entries(context: Context, found: Plan, wanted: ScheduleSet) -> None:
    """With the app, of jobs that take the place of entries which its own code has saved."""
    if context.app is None or not hasattr(context.app, "supervisor"):
        return
    from supervisor.beat.entries import Entries

    ledger = context.ledger
    for name in Entries(context.app, ledger.client, ledger.keys).stock(found.changes.added):
        what = f"job {name!r} ({wanted.sources[name]}) takes the place of RedBeat's entry {name!r}"
        click.echo(f"warning: {what}, which is lost", err=True)


def plan_on(context: Context, loaded: Loaded, wanted: ScheduleSet) -> Plan:
    ledger = context.ledger
    changes = difference(loaded.specs, wanted.specs, loaded.unread)
    touched = [wanted.specs[name] for name in (*changes.added, *changes.changed)]
    records = ledger.records_of(touched)
    durations = {record.spec.name: record.durations for record in records}
    return plan_of(loaded.specs, wanted.specs, durations, ledger.now(), loaded.unread)


def show(found: Plan, *, err: bool = False) -> None:
    for line in plan_lines(found):
        click.echo(harmless(line), err=err)


def warn_of_beat(context: Context, wanted: ScheduleSet) -> None:
    """If a beat follows other files, it loads those again within a second."""
    beat, now = context.ledger.beat(), context.ledger.now()
    if beat.leads(now) and beat.follows not in (None, wanted.digest):
        click.echo(
            f"warning: beat {beat.leader} leads and follows schedule files that differ from these; "
            "it will load its own again",
            err=True,
        )


# simulate


#: More would take minutes and gigabytes.
MOST_TICKS = 1_000_000

#: The duration of jobs that have not run yet.
ASSUMED = timedelta(seconds=1)


@click.command()
@path_argument
@click.option("--from", "start", type=MomentType(ahead=True), help="In UTC; default: now.")
@click.option("--to", "end", type=MomentType(ahead=True), help="Default: a day after --from.")
@click.option(
    "--duration",
    "given",
    multiple=True,
    metavar="JOB=30s",
    help="Duration of a job's runs; default: the median of those observed, else 1s.",
)
@click.option(
    "--worker-slots",
    "slots",
    type=click.IntRange(min=1),
    help="Concurrent runs on each queue that is not serial; default: as many as needed.",
)
@json_option
@pass_context
def simulate(
    context: Context,
    path: Path | None,
    start: Named | None,
    end: Named | None,
    given: tuple[str, ...],
    slots: int | None,
    as_json: bool,
) -> None:
    """Run the schedule files at PATH on a virtual clock, with the real decisions and no tasks."""
    specs = read_or_exit(context, path, as_json).specs
    zone, now = ZoneInfo("UTC"), datetime.now(UTC).replace(microsecond=0)
    first = moment_of(start, zone, now) or now
    last = moment_of(end, zone, now) or first + timedelta(days=1)
    check_span(specs, first, last)
    durations = {
        **dict.fromkeys(specs, ASSUMED),
        **medians(context, specs),
        **given_durations(given, specs),
    }
    tally = Tally.of(
        simulated(jobs_of(specs, durations, context.default_queue, first, last), last, slots),
        first,
        last,
    )
    if as_json:
        seconds = {name: duration.total_seconds() for name, duration in durations.items()}
        print_json(tally_shape(tally, seconds, slots))
        return
    words = {name: span(duration.total_seconds()) for name, duration in durations.items()}
    print_table(SIMULATED_COLUMNS, job_rows(tally, words))
    click.echo()
    print_table(QUEUE_COLUMNS, queue_rows(tally, slots))


def jobs_of(
    specs: Mapping[str, JobSpec],
    durations: Mapping[str, timedelta],
    default_queue: str,
    start: datetime,
    end: datetime,
) -> Iterator[SimulatedJob]:
    for name, spec in sorted(specs.items()):
        queue = spec.routed_queue or default_queue
        yield SimulatedJob(spec, ticks_of(spec, start, end), always(durations[name]), queue)


def check_span(specs: Mapping[str, JobSpec], start: datetime, end: datetime) -> None:
    if end <= start:
        raise click.BadParameter("must be later than --from", param_hint="--to")
    ticks = sum(number_of_ticks(spec, start, end) for spec in specs.values())
    if ticks > MOST_TICKS:
        raise click.BadParameter(
            f"that is {ticks:,} ticks; up to {MOST_TICKS:,} can be simulated", param_hint="--to"
        )


def medians(context: Context, specs: Mapping[str, JobSpec]) -> dict[str, timedelta]:
    """Of the durations that the ledger has observed; empty when it is unavailable."""
    try:
        records = context.ledger.records_of(list(specs.values()))
    except (RedisError, OSError) as error:
        words = (
            f"the ledger is unavailable ({error}): durations that are not given are taken to be 1s"
        )
        click.echo(words, err=True)
        return {}
    found = ((record.spec.name, record.durations.quantile(0.5)) for record in records)
    return {name: timedelta(seconds=median) for name, median in found if median is not None}


def given_durations(given: tuple[str, ...], specs: Mapping[str, JobSpec]) -> dict[str, timedelta]:
    return dict(given_duration(text, specs) for text in given)


def given_duration(text: str, specs: Mapping[str, JobSpec]) -> tuple[str, timedelta]:
    job, equals, duration = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not JOB=30s", param_hint="--duration")
    if job not in specs:
        hint = did_you_mean(job, specs)
        raise click.BadParameter(f"unknown job {job!r}{hint}", param_hint="--duration")
    try:
        return job, parse_duration(duration)
    except InvalidDuration as error:
        raise click.BadParameter(str(error), param_hint="--duration") from error


def always(duration: timedelta) -> Callable[[], timedelta]:
    return lambda: duration
