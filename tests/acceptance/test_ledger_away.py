"""A run that ends while its ledger is unavailable, and its broker is not: it is not done again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from signal import SIGKILL, SIGTERM

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run
from tests.acceptance.project import Project, Sign
from tests.conftest import DATABASES, database, emptied
from tests.processes import is_alive
from tests.waiting import status_of, wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 4s, on_crash: rerun}
jobs:
  work: {task: team.hold, every: 24h}
  limited: {task: team.hold, every: 24h, time_limit: 9s}
  softly-limited: {task: team.hold, every: 24h, soft_time_limit: 8s, time_limit: 60s}
  fails: {task: team.hold, every: 24h, args: [true]}
"""

#: Ends are given up a second after the worker is told to stop.
IMPATIENT = """
from datetime import timedelta
from functools import partial
from supervisor.worker import task
task.Guard = partial(task.Guard, report_timeout=timedelta(seconds=1))
"""


@pytest.fixture(scope="module")
def ledgers_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module")
def project(
    server: EmbeddedServer, ledgers_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """A project whose ledger is on a server that the tests stop."""
    broker = database(server.url, DATABASES)
    emptied(broker)
    project = Project(tmp_path_factory.mktemp("team"), ledgers_server.url, broker=broker)
    project.ledger.acknowledge_server()
    project.extend(IMPATIENT)
    try:
        project.deploy(JOBS, processes=4)
        yield project
    finally:
        project.stop()


def unreported(server: EmbeddedServer, project: Project, job: str) -> tuple[Run, Sign]:
    """A run that has ended, and its start in a process that cannot report the end."""
    failed = len(project.events("worker1", "ledger unavailable"))
    run = project.trigger(job)
    start = wait_until(lambda: starts(project, run), 30)[0]
    server.stop()
    project.let_end(run.id)
    wait_until(lambda: len(project.events("worker1", "ledger unavailable")) > failed, 20)
    return run, start


def starts(project: Project, run: Run) -> list[Sign]:
    return [sign for sign in project.starts(run.job) if sign.run == run.id]


def ended(server: EmbeddedServer, project: Project, run: Run) -> Run:
    """The run, once the ledger is back and knows the end of the only attempt."""
    server.start()
    wait_until(lambda: not project.ledger.run(run.id).state.is_open, 30)
    assert len(starts(project, run)) == 1
    return project.ledger.run(run.id)


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
def test_a_child_that_ends_before_it_could_report_has_done_its_work(
    ledgers_server: EmbeddedServer, project: Project, number: int
) -> None:
    failed = len(project.events("worker1", "dead child not reported"))
    run, start = unreported(ledgers_server, project, "work")
    os.kill(start.pid, number)
    # As it dies, and again with the next heartbeat.
    wait_until(lambda: len(project.events("worker1", "dead child not reported")) >= failed + 2)
    done = ended(ledgers_server, project, run)
    assert [attempt.outcome for attempt in done.attempts] == ["succeeded"]
    assert done.reason is None


def test_a_failure_that_its_child_could_not_report_is_no_crash(
    ledgers_server: EmbeddedServer, project: Project
) -> None:
    run, start = unreported(ledgers_server, project, "fails")
    os.kill(start.pid, SIGKILL)
    done = ended(ledgers_server, project, run)
    assert [attempt.outcome for attempt in done.attempts] == ["failed"]
    assert done.reason == f"worker process {start.pid} died before it could say why"


@pytest.mark.parametrize("job", ["limited", "softly-limited"])
def test_a_time_limit_counts_for_the_work_and_not_for_its_report(
    ledgers_server: EmbeddedServer, project: Project, job: str
) -> None:
    run, start = unreported(ledgers_server, project, job)
    if job == "limited":
        wait_until(lambda: not is_alive(start.pid), 20)
    else:
        wait_until(lambda: time.time() > start.at + 9)
    done = ended(ledgers_server, project, run)
    assert [attempt.outcome for attempt in done.attempts] == ["succeeded"]


def test_a_worker_that_is_stopped_does_not_wait_for_its_ledger(
    ledgers_server: EmbeddedServer, project: Project
) -> None:
    unreported(ledgers_server, project, "work")
    worker = project.processes[1]
    worker.send_signal(SIGTERM)
    status_of(worker, 40)
    assert project.events("worker1", "end not reported")
