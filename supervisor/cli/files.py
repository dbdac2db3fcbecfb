"""Verbs for schedule files: check, schema, plan, apply."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import (
    Context,
    changed,
    examples,
    json_option,
    pass_context,
    path_argument,
    print_done,
    print_json,
    progress,
    reason_option,
    warn,
)
from supervisor.errors import InvalidGuard, Problem, ScheduleFilesInvalid

if TYPE_CHECKING:
    from supervisor.catalog.schedule_files import ScheduleSet
    from supervisor.ledger.job_reads import Loaded
    from supervisor.operate.planning import Plan


@click.command(
    epilog=examples(
        "check",
        "-A proj check schedules/",
        "-A proj check --secrets  # in the environment of a worker",
    ),
)
@path_argument
@click.option("--secrets", is_flag=True, help="Also report each ${NAME} that is not set here.")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON list.")
@pass_context
def check(context: Context, path: Path | None, secrets: bool, as_json: bool) -> None:
    """List all problems in schedule files.

    PATH is a file or a directory, by default the one that beat follows. With -A, a task that the
    Celery app does not know is a problem too, and so is an invalid guard of a task of the app.
    Connects to nothing.

    Unlike beat, `plan` and `apply`, it also warns of notices that need the extra `notify`. With
    --secrets it reports references that are not set here.

    Exits 1 if there are problems, and 2 if the address of the ledger is not valid, or a certificate
    that it names cannot be read.
    """
    from supervisor.lists.commands import WARNINGS

    check_connection(context)
    guards = guard_problems(context)
    schedules = read_or_exit(context, path, as_json, os.environ if secrets else None, guards)
    if guards:
        print_problems(guards, as_json)
        sys.exit(1)
    for warnings in WARNINGS:
        for warning in warnings(schedules.specs.values()):
            warn(warning)
    warn_of_senders(context, schedules)
    where = context.schedules(path)
    click.echo("[]" if as_json else f"{where}: {_summary(schedules)}, no problems")


def warn_of_senders(context: Context, schedules: ScheduleSet) -> None:
    """Warns on standard error of tasks of jobs that may send nothing, and of guarded ones."""
    if context.app is None:
        return
    from supervisor.catalog.fitness import may_send_nothing

    tasks = {task for spec in schedules.specs.values() for task in spec.tasks}
    guarded = {name for name, task in context.app.tasks.items() if getattr(task, "guard", None)}
    for warning in may_send_nothing(context.app.tasks, tasks | guarded):
        warn(warning)


def guard_problems(context: Context) -> list[Problem]:
    """The problems of the guards in the app's code, each where its task is defined."""
    if context.app is None:
        return []
    from supervisor.catalog.fitness import guard_in_code
    from supervisor.sending.calls import checked_spec

    problems = []
    for task in context.app.tasks.values():
        try:
            _ = guard_in_code(task) and checked_spec(task)
        except InvalidGuard as invalid:
            problems.append(Problem(*place_of(task), None, str(invalid)))
    return problems


def place_of(task: Any) -> tuple[str, int]:
    """The file and the line of the task's function."""
    code = getattr(inspect.unwrap(task.run), "__code__", None)
    if code is None:  # not a function of Python's
        return task.__module__, 1
    return os.path.relpath(code.co_filename), code.co_firstlineno


def check_connection(context: Context) -> None:
    """Raises NotConfigured. Does not connect: files are also checked without a server."""
    from supervisor.store.connection import connect

    connect(context.effective_settings).close()


@click.command(epilog=examples("schema > schedule-schema.json"))
@click.option(
    "--json", is_flag=True, expose_value=False, help="Accepted; the output is JSON anyway."
)
def schema() -> None:
    """Print the JSON Schema of a schedule file, for your editor."""
    from supervisor.catalog.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def read_or_exit(
    context: Context,
    path: Path | None,
    as_json: bool,
    environ: Mapping[str, str] | None = None,
    others: Sequence[Problem] = (),
) -> ScheduleSet:
    """The schedule files at `path`. If they have problems, prints all and `others`, and exits 1."""
    from supervisor.catalog.schedule_files import load
    from supervisor.job.exclusions import holidays_ending
    from supervisor.job.secrets import directory_of

    app_tasks = None
    if context.app is not None:
        from supervisor.app import tasks_of

        app_tasks = tasks_of(context.app)
    try:
        with progress("reading schedule files"):
            schedules = load(
                context.schedules(path),
                app_tasks,
                environ,
                prefix=context.prefix,
                secrets=directory_of(os.environ),
            )
    except ScheduleFilesInvalid as invalid:
        print_problems([*invalid.problems, *others], as_json)
        raise SystemExit(1) from None
    for name, spec in schedules.specs.items():
        for of, until in holidays_ending(spec.exclude, datetime.now(UTC).year).items():
            what = f"note: job {name!r}: the holidays of {of} are known until the end of {until}"
            click.echo(what, err=True)
    if context.app is not None:
        from supervisor.catalog.fitness import refused_in_pool

        for warning in refused_in_pool(context.app.conf.worker_pool, schedules.specs):
            warn(warning)
    return schedules


def print_problems(problems: Sequence[Problem], as_json: bool) -> None:
    from supervisor.operate.words import harmless

    for line in map(str, () if as_json else problems):
        click.echo(harmless(line))
    if as_json:
        print_json([asdict(problem) for problem in problems])


def _summary(schedules: ScheduleSet) -> str:
    from supervisor.operate.words import plural

    files = {source.rpartition(":")[0] for source in schedules.sources.values()}
    return f"{plural(len(schedules.specs), 'job')} in {plural(len(files), 'file')}"


# plan, apply


@click.command(epilog=examples("-A proj plan", "-A proj plan --exit-code --json"))
@path_argument
@json_option
@click.option("--exit-code", is_flag=True, help="Exit 1 if something would change.")
@pass_context
def plan(context: Context, path: Path | None, as_json: bool, exit_code: bool) -> None:
    """Show what loading schedule files would change.

    For each job: the changed keys, the next ticks, and the overlaps to expect. PATH is a file or a
    directory, by default the one that beat follows. If the files have problems, lists them as
    `check` does and exits 1.
    """
    from supervisor.ledger.job_record import FILES
    from supervisor.operate.plans import plan_shape

    schedules, loaded = read_or_exit(context, path, as_json), context.ledger.loaded()
    exit_if_clashing(loaded, schedules, as_json)
    plan = plan_on(context, loaded.of(FILES), schedules)
    if as_json:
        print_json(plan_shape(plan))
    else:
        show(plan)
    warn_of_removal(loaded, schedules)
    note_crowds(plan, schedules)
    warn_of_entries(context, plan, schedules)
    if exit_code and plan.changes:
        sys.exit(1)


@click.command(
    epilog=examples(
        "-A proj apply",
        "-A proj apply --yes --reason 'release 42'",
        "-A proj apply --take-over  # after the app was renamed",
    ),
)
@path_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--take-over", is_flag=True, help="Make this app the owner of the ledger.")
@reason_option
@json_option
@pass_context
def apply(
    context: Context, path: Path | None, yes: bool, take_over: bool, reason: str, as_json: bool
) -> None:
    """Load schedule files now, as beat would.

    Prints the plan and asks first. PATH is a file or a directory, by default the one that beat
    follows. Also loads files that remove more than half of the jobs, or a directory without files,
    which beat does not do by itself.

    A ledger that belongs to another app is refused. --take-over is for an app that was renamed:
    beats that run under its old name stop.
    """
    from supervisor.ledger.actions import Action
    from supervisor.ledger.job_record import FILES
    from supervisor.operate.plans import plan_shape, summary
    from supervisor.operate.words import plural

    app = context.app_for("apply")  # its settings say where RedBeat's entries are
    from supervisor.catalog.entries import Entries
    from supervisor.catalog.load import load
    from supervisor.sending.app_settings import owner_of, required_settings

    required_settings(app)
    schedules, ledger = read_or_exit(context, path, as_json), context.ledger
    target = str(context.schedules(path))
    with context.acting("apply", target, reason):
        if not take_over:
            ledger.check_owner(owner_of(app))
    everything = ledger.loaded()
    exit_if_clashing(everything, schedules, as_json)
    loaded = everything.of(FILES)
    plan = plan_on(context, loaded, schedules, None if as_json else MOST_SHOWN)
    if not as_json or not yes:
        show(plan, MOST_SHOWN, err=as_json)
    warn_of_removal(everything, schedules)
    note_crowds(plan, schedules)
    warn_of_entries(context, plan, schedules)
    if not plan.changes and not take_over:
        if as_json:
            print_done("apply", [], plan=plan_shape(plan))
        return
    warn_of_beat(context, schedules)
    if not yes:
        click.confirm("Apply?", abort=True, err=True)
    if take_over:
        ledger.take_over(owner_of(app))
        ledger.actions.enter(Action(context.actor, "take over", owner_of(app), reason))
    entries = Entries(app, ledger)
    seen, places = loaded.specs, schedules.sources
    words = f"loading {plural(len(plan.changes), 'change')}"
    with context.acting("apply", target, reason) as action, progress(words):
        done = load(ledger, entries, schedules.specs, schedules.digest, None, seen, places, action)
    click.echo(f"applied: {summary(done)}", err=as_json)
    if as_json:
        print_done("apply", changed(done), plan=plan_shape(plan))


def exit_if_clashing(loaded: Loaded, schedules: ScheduleSet, as_json: bool) -> None:
    """If jobs of other sources have the same names, prints all of them and exits 1."""
    from supervisor.catalog.refusals import clashes

    if problems := clashes(loaded, schedules):
        print_problems(problems, as_json)
        sys.exit(1)


def warn_of_removal(loaded: Loaded, schedules: ScheduleSet) -> None:
    from supervisor.catalog.refusals import removal_by_files

    if removal := removal_by_files(loaded, schedules):
        warn(f"{removal}: beat loads that only after `supervisor apply`")


def note_crowds(plan: Plan, schedules: ScheduleSet) -> None:
    from supervisor.schedule.crowds import notes

    for line in notes(schedules.specs.values()) if plan.changes.added else ():
        click.echo(f"note: {line}", err=True)


def warn_of_entries(context: Context, plan: Plan, schedules: ScheduleSet) -> None:
    """Warns, with -A, of jobs that replace entries which the app's own code has saved."""
    if context.app is None or not hasattr(context.app, "supervisor"):
        return
    from supervisor.catalog.entries import Entries

    ledger = context.ledger
    entries = Entries(context.app, ledger)
    entries.learn_names()
    edited = [schedules.specs[name] for name in (*plan.changes.added, *plan.changes.changed)]
    for name, entry in entries.replaced_by(edited).items():
        what = (
            f"job {name!r} ({schedules.sources[name]}) takes the place of RedBeat's entry {entry!r}"
        )
        warn(f"{what}; `release` makes the job an entry again")


def plan_on(
    context: Context, loaded: Loaded, schedules: ScheduleSet, most: int | None = None
) -> Plan:
    """most: of more changes only the first are looked at."""
    from supervisor.job.changes import difference
    from supervisor.operate.planning import plan_of
    from supervisor.operate.words import plural

    ledger = context.ledger
    changes = difference(loaded.specs, schedules.specs, loaded.unread)
    touched = [schedules.specs[name] for name in changes.names(most) if name in schedules.specs]
    durations = ledger.durations_of(touched)
    with progress(f"planning {plural(len(touched), 'change')}"):
        return plan_of(loaded.specs, schedules.specs, durations, ledger.now(), loaded.unread, most)


#: `apply` shows up to this many jobs; `plan` shows all of them.
MOST_SHOWN = 20

SIGNS = {"+": "green", "~": "yellow", "-": "red"}


def show(plan: Plan, most: int | None = None, *, err: bool = False) -> None:
    from supervisor.operate.plans import plan_lines
    from supervisor.operate.words import harmless

    for line in plan_lines(plan, most):
        click.echo(click.style(harmless(line), fg=SIGNS.get(line[:1])), err=err)


def warn_of_beat(context: Context, schedules: ScheduleSet) -> None:
    """Warns if a beat follows other files: it would load those again within a second.

    Of a beat that refuses its files, it is not known which they are.
    """
    beat, now = context.ledger.beat(), context.ledger.now()
    refuses = beat.last_reload_successful is False
    if beat.leads(now) and not refuses and beat.follows not in (None, schedules.digest):
        warn(
            f"beat {beat.leader} leads and follows schedule files that differ from these; it will"
            " load its own again"
        )
