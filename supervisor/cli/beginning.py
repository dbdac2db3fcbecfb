"""The verb that makes a first schedule file: init."""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.context import Context, documentation, pass_context
from supervisor.cli.schedules import path_argument

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
@pass_context
def init(context: Context, path: Path | None) -> None:
    """Write a first schedule file, example.yaml, into the directory PATH, by default schedules.

    With -A it names a task of the app. What is there already is never overwritten.
    """
    directory = context.schedules(path)
    file = directory / "example.yaml"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as made:
            made.write(EXAMPLE.format(task=task_of(context)))
    except FileExistsError as error:
        what = f"{error.filename} is there already: nothing was written"
        raise click.ClickException(what) from error
    command = f"supervisor -A {context.app_name or 'proj'}"
    page = documentation() / "schedule-file.md"
    click.echo(NEXT.format(file=file, directory=directory, command=command, page=page), nl=False)


def task_of(context: Context) -> str:
    own = [] if context.app is None else context.app.tasks
    return min((name for name in own if not name.startswith("celery.")), default=SOME_TASK)


VERBS: tuple[click.Command, ...] = (init,)
