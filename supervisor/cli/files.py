"""Verbs for schedule files: check, schema, init, plan, apply."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import documentation
from supervisor.cli.common import (
    Context,
    Failure,
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
from supervisor.errors import REFUSED, Problem, ScheduleFilesInvalid, SupervisorError

if TYPE_CHECKING:
    from supervisor.catalog.schedule_files import ScheduleSet
    from supervisor.ledger.reads import Loaded
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
    Celery app does not know is a problem too. Connects to nothing.

    It looks further than beat, `plan` and `apply` do: it also warns of notices that need the extra
    `notify`. With --secrets it reports references that are not set here.

    Exits 1 if there are problems, and 2 if the address of the ledger is not valid, or a certificate
    that it names cannot be read.
    """
    check_connection(context)
    schedules = read_or_exit(context, path, as_json, os.environ if secrets else None)
    warn_of_extra(schedules)
    warn_of_senders(context, schedules)
    where = context.schedules(path)
    click.echo("[]" if as_json else f"{where}: {_summary(schedules)}, no problems")


def warn_of_extra(schedules: ScheduleSet) -> None:
    """Warns on standard error if this environment lacks what it takes to send notices."""
    from supervisor.features.notices.services import missing_extra

    if missing := missing_extra(to for spec in schedules.specs.values() for to in spec.notify):
        warn(missing)


def warn_of_senders(context: Context, schedules: ScheduleSet) -> None:
    """Warns on standard error of tasks of jobs that may send nothing, and of guarded ones."""
    if context.app is None:
        return
    from supervisor.catalog.fitness import may_send_nothing

    tasks = {task for spec in schedules.specs.values() for task in spec.tasks}
    guarded = {name for name, task in context.app.tasks.items() if getattr(task, "guard", None)}
    for warning in may_send_nothing(context.app.tasks, tasks | guarded):
        warn(warning)


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
    from supervisor.catalog.schedule_files import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def read_or_exit(
    context: Context,
    path: Path | None,
    as_json: bool,
    environ: Mapping[str, str] | None = None,
) -> ScheduleSet:
    """The schedule files at `path`. If they have problems, prints all of them and exits 1."""
    from supervisor.catalog.schedule_files import load
    from supervisor.job.exclusions import holidays_ending
    from supervisor.job.secrets import directory_of

    known_tasks = None
    if context.app is not None:
        from supervisor.app import tasks_of

        known_tasks = tasks_of(context.app)
    try:
        with progress("reading schedule files"):
            schedules = load(
                context.schedules(path),
                known_tasks,
                environ,
                prefix=context.prefix,
                secrets=directory_of(os.environ),
            )
    except ScheduleFilesInvalid as invalid:
        print_problems(invalid.problems, as_json)
        raise SystemExit(1) from None
    for name, spec in schedules.specs.items():
        for of, until in holidays_ending(spec.exclude, datetime.now(UTC).year).items():
            what = f"note: job {name!r}: the holidays of {of} are known until the end of {until}"
            click.echo(what, err=True)
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


# init


EXAMPLE = """\
# A schedule file: jobs by name. Every key: supervisor schema; mistakes: supervisor check.
defaults:
  timezone: UTC                # or a name such as Europe/Berlin

jobs:
  example:
    task: {task}
    {times}
    overlap: skip              # what happens to a run while the previous one is still going
    max_retries: 2
    time_limit: 10m
"""

PAUSED = "    paused: true               # nothing runs until you take this line out\n"

EVERY = 'every: {}                 # or cron: "30 2 * * 1-5", or rrule, or at'

#: Where no app was named, or it has no task yet.
SOME_TASK = "proj.tasks.example   # a task of your app"

APP = """\
import time

from celery import Celery
from supervisor.app import supervise

app = Celery("proj")
supervise(app, schedules={directory})


@app.task
def hello(name="world"):
    time.sleep(2)  # your work
    return f"hello {{name}}"
"""

RUN_IT = """\
next   supervisor -A proj up
wrote  {app}, a Celery app with one task
       {file}, a job that runs it every 10 seconds
keys   {page}
"""

EDIT_IT = """\
next   1. name your task and its times in {file}, and take `paused` out
       2. where the Celery app is made: supervise(app, schedules="{directory}")
       3. {command} check
       4. {command} up
wrote  {file}
keys   {page}
"""


@click.command(epilog=examples("init", "-A proj init"))
@path_argument
@json_option
@pass_context
def init(context: Context, path: Path | None, as_json: bool) -> None:
    """Write a first schedule file and, in an empty folder, an app.

    PATH is the directory of the file, example.yaml, by default schedules. With -A, the job in it
    names a task of the app and is paused. Without an app, and if there is no Python code here yet,
    it also writes an app, proj.py, with a job that runs. Exits 4 if a file exists already: none is
    overwritten.
    """
    directory = context.schedules(path)
    app, file = Path("proj.py"), directory / "example.yaml"
    texts = {file: EXAMPLE.format(task=task_of(context), times=EVERY.format("5m ")) + PAUSED}
    is_new = context.app is None and not has_python(Path())
    if is_new:
        texts[file] = EXAMPLE.format(task="proj.hello", times=EVERY.format("10s"))
        texts[app] = APP.format(directory=json.dumps(str(directory), ensure_ascii=False))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with name.open("x", encoding="utf-8") as made:
                made.write(text)
    except FileExistsError as error:
        what = f"{error.filename} exists already: nothing was written"
        raise Failure(what, REFUSED) from error
    except OSError as error:
        what = f"{error.filename}: cannot be written: {error.strerror}"
        raise SupervisorError(what) from error
    if as_json:
        jobs = {file: ["example"], app: []}
        written = [{"name": str(n), "state": "written", "jobs": jobs[n]} for n in texts]
        print_done("init", written)
        return
    words = {
        "app": app,
        "file": file,
        "directory": directory,
        "command": f"supervisor -A {context.app_name or 'proj'}",
        "page": documentation() / "reference" / "schedule-file.md",
    }
    click.echo((RUN_IT if is_new else EDIT_IT).format(**words), nl=False)


def has_python(folder: Path) -> bool:
    """Whether there is Python code in the folder or one level below it."""
    return any(next(folder.glob(name), None) for name in ("*.py", "*/*.py", "pyproject.toml"))


def task_of(context: Context) -> str:
    own = [] if context.app is None else context.app.tasks
    return min((name for name in own if not name.startswith("celery.")), default=SOME_TASK)


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
    from supervisor.ledger.records import FILES
    from supervisor.operate.plans import plan_shape

    wanted, loaded = read_or_exit(context, path, as_json), context.ledger.loaded()
    exit_if_clashing(loaded, wanted, as_json)
    found = plan_on(context, loaded.of(FILES), wanted)
    if as_json:
        print_json(plan_shape(found))
    else:
        show(found)
    warn_of_removal(loaded, wanted)
    warn_of_crowds(found, wanted)
    warn_of_entries(context, found, wanted)
    if exit_code and found.changes:
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
    from supervisor.ledger.records import FILES
    from supervisor.operate.plans import plan_shape, summary
    from supervisor.operate.words import plural

    app = context.app_for("apply")  # its settings say where RedBeat's entries are
    from supervisor.catalog.entries import Entries
    from supervisor.catalog.load import load
    from supervisor.sending.app_settings import owner_of, required_settings

    required_settings(app)
    wanted, ledger = read_or_exit(context, path, as_json), context.ledger
    target = str(context.schedules(path))
    with context.acting("apply", target, reason):
        if not take_over:
            ledger.check_owner(owner_of(app))
    everything = ledger.loaded()
    exit_if_clashing(everything, wanted, as_json)
    loaded = everything.of(FILES)
    found = plan_on(context, loaded, wanted, None if as_json else MOST_SHOWN)
    if not as_json or not yes:
        show(found, MOST_SHOWN, err=as_json)
    warn_of_removal(everything, wanted)
    warn_of_crowds(found, wanted)
    warn_of_entries(context, found, wanted)
    if not found.changes and not take_over:
        if as_json:
            print_done("apply", [], plan=plan_shape(found))
        return
    warn_of_beat(context, wanted)
    if not yes:
        click.confirm("Apply?", abort=True, err=True)
    if take_over:
        ledger.take_over(owner_of(app))
        ledger.actions.enter(Action(context.actor, "take over", owner_of(app), reason))
    entries = Entries(app, ledger)
    seen, places = loaded.specs, wanted.sources
    words = f"loading {plural(len(found.changes), 'change')}"
    with context.acting("apply", target, reason) as action, progress(words):
        done = load(ledger, entries, wanted.specs, wanted.digest, None, seen, places, action)
    click.echo(f"applied: {summary(done)}", err=as_json)
    if as_json:
        print_done("apply", changed(done), plan=plan_shape(found))


def exit_if_clashing(loaded: Loaded, wanted: ScheduleSet, as_json: bool) -> None:
    """If jobs of other sources have the same names, prints all of them and exits 1."""
    from supervisor.catalog.refusals import clashes

    if problems := clashes(loaded, wanted):
        print_problems(problems, as_json)
        sys.exit(1)


def warn_of_removal(loaded: Loaded, wanted: ScheduleSet) -> None:
    from supervisor.catalog.refusals import removal_by_files

    if removal := removal_by_files(loaded, wanted):
        warn(f"{removal}: beat loads that only after `supervisor apply`")


def warn_of_crowds(found: Plan, wanted: ScheduleSet) -> None:
    from supervisor.operate.plans import crowds
    from supervisor.times import render_duration

    grids = (
        (render_duration(spec.every), spec.phase and render_duration(spec.phase))
        for spec in wanted.specs.values()
        if spec.every and not spec.jitter
    )
    for line in crowds(grids) if found.changes.added else ():
        click.echo(f"note: {line}", err=True)


def warn_of_entries(context: Context, found: Plan, wanted: ScheduleSet) -> None:
    """Warns, with -A, of jobs that replace entries which the app's own code has saved."""
    if context.app is None or not hasattr(context.app, "supervisor"):
        return
    from supervisor.catalog.entries import Entries

    ledger = context.ledger
    entries = Entries(context.app, ledger)
    entries.learn_names()
    edited = [wanted.specs[name] for name in (*found.changes.added, *found.changes.changed)]
    for name, entry in entries.replaced_by(edited).items():
        what = f"job {name!r} ({wanted.sources[name]}) takes the place of RedBeat's entry {entry!r}"
        warn(f"{what}; `release` makes the job an entry again")


def plan_on(context: Context, loaded: Loaded, wanted: ScheduleSet, most: int | None = None) -> Plan:
    """most: of more changes only the first are looked at."""
    from supervisor.job.changes import difference
    from supervisor.operate.forecast import by_lock, sharing
    from supervisor.operate.planning import plan_of
    from supervisor.operate.words import plural

    ledger = context.ledger
    changes = difference(loaded.specs, wanted.specs, loaded.unread)
    touched = [wanted.specs[name] for name in changes.names(most) if name in wanted.specs]
    locks = by_lock(wanted.specs.values())
    others = (job for spec in touched for job in sharing(spec, locks))
    durations = ledger.durations_of(list({job.name: job for job in (*touched, *others)}.values()))
    with progress(f"planning {plural(len(touched), 'change')}"):
        found = plan_of(loaded.specs, wanted.specs, durations, ledger.now(), loaded.unread, most)
    if context.app is None:
        return found
    from supervisor.sending.templates import foreseen_apart

    app, url = context.app, context.effective_settings.redis_url
    jobs = (replace(job, apart=foreseen_apart(app, url, job.spec)) for job in found.jobs)
    return replace(found, jobs=tuple(jobs))


#: `apply` shows up to this many jobs; `plan` shows all of them.
MOST_SHOWN = 20

SIGNS = {"+": "green", "~": "yellow", "-": "red"}


def show(found: Plan, most: int | None = None, *, err: bool = False) -> None:
    from supervisor.operate.plans import plan_lines
    from supervisor.operate.words import harmless

    for line in plan_lines(found, most):
        click.echo(click.style(harmless(line), fg=SIGNS.get(line[:1])), err=err)


def warn_of_beat(context: Context, wanted: ScheduleSet) -> None:
    """Warns if a beat follows other files: it would load those again within a second."""
    beat, now = context.ledger.beat(), context.ledger.now()
    if beat.leads(now) and beat.follows not in (None, wanted.digest):
        warn(
            f"beat {beat.leader} leads and follows schedule files that differ from these; it will"
            " load its own again"
        )
