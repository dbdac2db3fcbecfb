"""The verb init: a first schedule file and, where there is no app yet, an app."""

from __future__ import annotations

import json
from pathlib import Path

import click

from supervisor.cli import documentation
from supervisor.cli.common import (
    CommandFailed,
    Context,
    examples,
    json_option,
    pass_context,
    path_argument,
    print_done,
)
from supervisor.errors import REFUSED, SupervisorError

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
        raise CommandFailed(what, REFUSED) from error
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
