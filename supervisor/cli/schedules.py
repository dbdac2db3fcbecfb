"""The verbs for those who edit schedule files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.context import Context, pass_context
from supervisor.display.reports import harmless
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files.schedule_files import ScheduleSet, load
from supervisor.files.schedule_schema import json_schema

if TYPE_CHECKING:
    pass


#: Of the schedule files; `Context.schedules` knows where they are when it is left out.
path_argument = click.argument(
    "path", required=False, type=click.Path(path_type=Path), envvar="SUPERVISOR_SCHEDULES"
)


@click.command()
@path_argument
@click.option("--secrets", is_flag=True, help="A ${NAME} that is not set here is wrong too.")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON list.")
@pass_context
def check(context: Context, path: Path | None, secrets: bool, as_json: bool) -> None:
    """Say all that is wrong in the schedule files at PATH, by default those that beat follows.

    With -A, a task that the Celery app does not know is wrong too. Exits 1 when something is.
    """
    schedules = read_or_exit(context, path, as_json, os.environ if secrets else None)
    where = context.schedules(path)
    click.echo("[]" if as_json else f"{where}: {_summary(schedules)}, no problems")


@click.command()
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
        return load(context.schedules(path), known_tasks, environ)
    except ScheduleFilesInvalid as invalid:
        for line in map(str, () if as_json else invalid.problems):
            click.echo(harmless(line))
        if as_json:
            click.echo(json.dumps([asdict(problem) for problem in invalid.problems], indent=2))
        raise SystemExit(1) from None


def _summary(schedules: ScheduleSet) -> str:
    files = {source.rpartition(":")[0] for source in schedules.sources.values()}
    return f"{_count(len(schedules.specs), 'job')} in {_count(len(files), 'file')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


VERBS: tuple[click.Command, ...] = (check, schema)
