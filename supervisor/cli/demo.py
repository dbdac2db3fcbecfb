"""The verb demo: a project in a temporary directory, whose jobs go wrong on purpose."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import click

from supervisor.cli.common import PORT
from supervisor.job.run import RunState
from supervisor.job.topology import DEFAULT_QUEUE
from supervisor.ledger.ledger import Ledger
from supervisor.settings import TOKEN, Settings, running_url

APP = """\
import time

from celery import Celery
from supervisor.app import supervise

app = Celery("demo")
supervise(app, schedules="schedules")


@app.task
def work(seconds):
    time.sleep(seconds)


@app.task
def fail():
    raise ValueError("this task fails on purpose")
"""

JOBS = """\
jobs:
  healthy: {task: demo.work, every: 5s, args: [1], description: Nothing is wrong with it.}
  overlaps:
    {task: demo.work, every: 4s, args: [9], description: Takes longer than its interval.}
  fails: {task: demo.fail, every: 15s, max_retries: 1, retry_backoff: 3s, description: Raises.}
  is-killed:
    {task: demo.work, every: 20s, args: [10], description: Its process is killed once.}
"""

WORDS = """\
healthy    runs every 5 seconds
overlaps   takes 9 seconds, every 4: most runs are skipped, and name the run that blocked them
fails      raises, is retried once and fails: the traceback is on the page of its run
is-killed  its process is killed once, during a run: the run starts again, as attempt 2
"""


@click.command()
@click.option("--port", type=PORT, default=9809, show_default=True, help="Port of the status page.")
def demo(port: int) -> None:
    """Run jobs that go wrong on purpose, for a look at the page.

    They overlap, fail, and have their process killed. Runs in a temporary directory, with an
    embedded Redis, until Ctrl-C.
    """
    from supervisor import logs
    from supervisor.cli.service import bound
    from supervisor.deploy.up import Up, UpOptions
    from supervisor.web.access import Access

    Access.of("127.0.0.1", os.environ.get(TOKEN) or None)
    bound("127.0.0.1", port).close()
    logs.configure(level="error")
    with TemporaryDirectory(prefix="supervisor-demo-") as folder, chdir(folder):
        Path("demo.py").write_text(APP)
        Path("schedules").mkdir()
        Path("schedules", "demo.yaml").write_text(JOBS)
        click.echo(WORDS)
        Thread(target=kill_once, daemon=True).start()
        Up(
            UpOptions(
                app="demo",
                schedules=Path("schedules").absolute(),  # printed, so that the file can be edited
                default_queue=DEFAULT_QUEUE,
                redis_url=None,
                host="127.0.0.1",
                port=port,
                proxied=False,
                concurrency=4,
                log_level="critical",  # no traceback every 15 seconds
            ),
            own_environment(os.environ),
        ).run()


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings that are meant for another app."""
    others = ("SUPERVISOR_", "CELERY_", "DJANGO_")
    return {n: value for n, value in environ.items() if n == TOKEN or not n.startswith(others)}


def kill_once() -> None:
    """Kills the process of the first run of `is-killed`, three seconds after it began."""
    while True:
        time.sleep(1)
        url = running_url()
        history = Ledger.open(Settings(url)).history("is-killed") if url else []
        for run in history:
            if run.state is RunState.RUNNING and run.worker:
                time.sleep(3)
                pid = int(run.worker.rpartition(":")[2])
                os.kill(pid, signal.SIGKILL)
                click.echo(f"killed process {pid}, which ran {run.id}")
                return
