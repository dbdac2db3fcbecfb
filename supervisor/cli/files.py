"""Verbs for schedule files: check, schema, init, import."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from supervisor.cli.common import (
    Context,
    Failure,
    documentation,
    json_option,
    pass_context,
    print_done,
    print_json,
)
from supervisor.errors import REFUSED, Problem, ScheduleFilesInvalid, SupervisorError
from supervisor.files.import_text import Item, write
from supervisor.files.schedule_files import ScheduleSet, load
from supervisor.files.schedule_schema import json_schema
from supervisor.job.exclusions import holidays_ending
from supervisor.job.fields import zone_names
from supervisor.ledger.connection import connect
from supervisor.operate.import_crontab import read_crontab
from supervisor.operate.shapes import harmless
from supervisor.operate.words import plural

if TYPE_CHECKING:
    from celery import Celery


#: Of the schedule files; `Context.schedules` knows where they are when it is left out.
path_argument = click.argument(
    "path", required=False, type=click.Path(path_type=Path), envvar="SUPERVISOR_SCHEDULES"
)


@click.command()
@path_argument
@click.option("--secrets", is_flag=True, help="A ${NAME} that is not set here is a problem too.")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON list.")
@pass_context
def check(context: Context, path: Path | None, secrets: bool, as_json: bool) -> None:
    """List all problems in the schedule files at PATH, by default those that beat follows.

    With -A, a task that the Celery app does not know is a problem too. Exits 1 if there is any,
    and 2 where the address of the ledger, or a certificate that it names, cannot be read.
    """
    warn_of_scheduler(context)
    check_connection(context)
    schedules = read_or_exit(context, path, as_json, os.environ if secrets else None)
    warn_of_extra(schedules)
    where = context.schedules(path)
    click.echo("[]" if as_json else f"{where}: {_summary(schedules)}, no problems")


def warn_of_scheduler(context: Context) -> None:
    """On standard error, where the app's settings name one that starts no job."""
    if context.app is None:
        return
    from supervisor.app import overridden

    for found in overridden(context.app):
        if found.setting == "beat_scheduler" and hasattr(context.app, "supervisor"):
            click.echo(f"warning: {found.setting} is {found.value!r}: {found.hint}", err=True)


def warn_of_extra(schedules: ScheduleSet) -> None:
    """On standard error, where notices cannot be sent from an environment such as this one."""
    from supervisor.integrations import missing_extra

    if missing := missing_extra(to for spec in schedules.specs.values() for to in spec.notify):
        click.echo(f"warning: {missing}", err=True)


def check_connection(context: Context) -> None:
    """Raises InvalidRedisUrl; no server is asked, for files are checked where there is none."""
    connect(context.effective_settings).close()


@click.command()
@click.option("--json", is_flag=True, expose_value=False, help="It is JSON anyway.")
def schema() -> None:
    """Print the JSON Schema of a schedule file, for your editor."""
    click.echo(json.dumps(json_schema(), indent=2))


def read_or_exit(
    context: Context,
    path: Path | None,
    as_json: bool,
    environ: Mapping[str, str] | None = None,
) -> ScheduleSet:
    """The schedule files at `path`; with problems in them, prints all of these and exits 1."""
    known_tasks = frozenset(context.app.tasks) if context.app is not None else None
    try:
        schedules = load(context.schedules(path), known_tasks, environ, prefix=context.prefix)
    except ScheduleFilesInvalid as invalid:
        print_problems(invalid.problems, as_json)
        raise SystemExit(1) from None
    for name, spec in schedules.specs.items():
        for of, until in holidays_ending(spec.exclude, datetime.now(UTC).year).items():
            what = f"note: job {name!r}: the holidays of {of} are known until the end of {until}"
            click.echo(what, err=True)
    return schedules


def print_problems(problems: Sequence[Problem], as_json: bool) -> None:
    for line in map(str, () if as_json else problems):
        click.echo(harmless(line))
    if as_json:
        print_json([asdict(problem) for problem in problems])


def _summary(schedules: ScheduleSet) -> str:
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
    every: 5m                  # or cron: "30 2 * * 1-5", or rrule, or at
    overlap: skip              # what happens to a run while the previous one is not done
    max_retries: 2
    time_limit: 10m
    paused: true               # nothing runs until you take this line out
"""

#: Where no app was named, or it has no task yet.
SOME_TASK = "proj.tasks.example   # a task of your app"

NEXT = """\
wrote {file}
next   1. name your task and its times in it, and take `paused` out
       2. where the Celery app is made: supervise(app, schedules="{directory}")
       3. {command} check
       4. {command} up
keys   {page}
"""


@click.command()
@path_argument
@json_option
@pass_context
def init(context: Context, path: Path | None, as_json: bool) -> None:
    """Write a first schedule file, example.yaml, into the directory PATH, by default schedules.

    With -A it names a task of the app. An existing file is never overwritten: exits 4.
    """
    directory = context.schedules(path)
    file = directory / "example.yaml"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as made:
            made.write(EXAMPLE.format(task=task_of(context)))
    except FileExistsError as error:
        what = f"{error.filename} exists already: nothing was written"
        raise Failure(what, REFUSED) from error
    if as_json:
        print_done("init", [{"name": str(file), "state": "written", "jobs": ["example"]}])
        return
    command = f"supervisor -A {context.app_name or 'proj'}"
    page = documentation() / "schedule-file.md"
    click.echo(NEXT.format(file=file, directory=directory, command=command, page=page), nl=False)


def task_of(context: Context) -> str:
    own = [] if context.app is None else context.app.tasks
    return min((name for name in own if not name.startswith("celery.")), default=SOME_TASK)


# import


Command = TypeVar("Command", bound=Callable[..., Any])

GRID = (
    "`every` is a grid from 1970-01-01T00:00:00Z (15m: at :00, :15, :30 and :45), not an interval"
    " after the last run or the start of beat."
)
DEFAULTS = (
    "A run that is due while the previous one is not done is skipped (overlap: skip); one that no"
    " worker takes expires after an hour (start_deadline: 1h)."
)
TWICE = "Take these jobs out of {} when you load this file, or they run twice."


@click.group("import")
def import_() -> None:
    """Write a schedule file from a Celery app's schedules or a crontab.

    What cannot be translated is reported on stderr, and stands as a comment in its place. Exits 1
    if there is any.
    """


def where(command: Command) -> Command:
    """The options that say where the file goes, and --json."""
    command = json_option(command)
    command = click.option("--force", is_flag=True, help="Overwrite FILE.")(command)
    return click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write to FILE instead of standard output.",
    )(command)


@import_.command("beat-schedule")
@where
@pass_context
def beat_schedule(context: Context, output: Path | None, force: bool, as_json: bool) -> None:
    """Import the `beat_schedule` of the app named with -A."""
    from supervisor.beat.import_celery import read_beat_schedule

    _import_of_app(context, "beat_schedule", read_beat_schedule, output, force, as_json)


@import_.command("redbeat")
@where
@pass_context
def redbeat(context: Context, output: Path | None, force: bool, as_json: bool) -> None:
    """Import the entries that RedBeat keeps in Redis for the app named with -A."""
    from supervisor.beat.import_celery import read_redbeat

    _import_of_app(context, "RedBeat", read_redbeat, output, force, as_json)


@import_.command("django-celery-beat")
@where
@pass_context
def django_celery_beat(context: Context, output: Path | None, force: bool, as_json: bool) -> None:
    """Import django-celery-beat's tables, by the Django settings of the app named with -A."""
    from supervisor.operate.import_django import read_django

    _import_of_app(context, "django-celery-beat", read_django, output, force, as_json)


def _import_of_app(
    context: Context,
    source: str,
    read: Callable[[Celery, datetime], list[Item]],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    from supervisor.beat.import_celery import zone_remark

    refuse_to_overwrite(output, force)
    app = app_of(context, "import")
    items = read(app, datetime.now(UTC))
    deliver(header(source, zone_remark(app), GRID), items, output, as_json=as_json)


@import_.command("crontab")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--task",
    default="run_command",
    show_default=True,
    help="The task that runs a command, given as the keyword argument `command`.",
)
@click.option(
    "--timezone", default="UTC", show_default=True, help="The zone of the crontab's machine."
)
@click.option("--system", is_flag=True, help="FILE has a user column, as /etc/crontab.")
@where
def crontab(
    file: str,
    task: str,
    timezone: str,
    system: bool,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Import a crontab; FILE may be - for standard input."""
    if timezone not in zone_names():
        raise click.BadParameter(f"unknown time zone {timezone!r}", param_hint="--timezone")
    refuse_to_overwrite(output, force)
    name = "stdin" if file == "-" else file
    items = read_crontab(_text_of(file), file=name, task=task, timezone=timezone, system=system)
    zone = f"Times without a CRON_TZ are read in {timezone} (--timezone)."
    deliver(header(f"the crontab {name}", zone), items, output, as_json=as_json)


def header(source: str, *remarks: str) -> list[str]:
    return [f"Imported from {source}.", *remarks, DEFAULTS, TWICE.format(source)]


def app_of(context: Context, verb: str) -> Celery:
    if context.app is None:
        raise click.UsageError(f"name the Celery app: supervisor -A proj {verb} ...")
    return context.app


def _text_of(file: str) -> str:
    try:
        with click.open_file(file, "rb") as stream:
            return bytes(stream.read()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SupervisorError(f"{file}: is not UTF-8 text") from None


def refuse_to_overwrite(output: Path | None, force: bool) -> None:
    if output is not None and output.exists() and not force:
        raise Failure(f"{output} exists; --force overwrites it", REFUSED)


def deliver(
    header: Sequence[str],
    items: Iterable[Item],
    output: Path | None,
    remarks: Sequence[str] = (),
    verb: str = "import",
    *,
    as_json: bool,
) -> None:
    """Writes the file, and exits."""
    written = write(header, items)
    reports = [*written.reports, *remarks]
    for report in () if as_json else reports:
        click.echo(report, err=True)
    if output is not None:
        write_file(written.text, written.jobs, output, verb, reports, as_json=as_json)
    elif as_json:
        result = {"name": "-", "state": "printed", "jobs": written.jobs, "text": written.text}
        print_done(verb, [result], reports=reports)
    else:
        click.echo(written.text, nl=False)
    raise SystemExit(1 if reports else 0)


def write_file(
    text: str,
    jobs: Sequence[str],
    output: Path,
    verb: str,
    reports: Sequence[str] = (),
    *,
    as_json: bool,
) -> None:
    replace_file(text, output)
    if as_json:
        result = {"name": str(output), "state": "written", "jobs": list(jobs)}
        print_done(verb, [result], reports=list(reports))
    else:
        click.echo(f"{output}: {plural(len(jobs), 'job')}")


def replace_file(text: str, output: Path) -> None:
    """In one step, because a beat may follow the directory."""
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(output)
    except OSError as error:
        raise SupervisorError(f"{output}: cannot be written: {error.strerror}") from error
