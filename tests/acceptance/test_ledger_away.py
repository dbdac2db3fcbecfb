"""A run that ends while its ledger is away, on a broker that is not: it is not done again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run
from tests.acceptance.project import Project
from tests.processes import is_alive
from tests.waiting import status_of, wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 4s, on_crash: rerun}
jobs:
  work: {task: team.hold, every: 24h}
  limited: {task: team.hold, every: 24h, time_limit: 4s}
  softly-limited: {task: team.hold, every: 24h, soft_time_limit: 3s, time_limit: 60s}
  fails: {task: team.hold, every: 24h, args: [true]}
"""

#: Ends are given up a second after the worker is told to stop.
IMPATIENT = """
from datetime import timedelta
from functools import partial
from supervisor.worker import task
task.Guard = partial(task.Guard, patience=timedelta(seconds=1))
"""


@pytest.fixture
def fragile(tmp_path: Path, redis_url: str) -> Iterator[tuple[EmbeddedServer, Project]]:
    """A project whose ledger is on a server that the test may stop."""
    with EmbeddedServer(tmp_path / "valkey") as server:
        project = Project(tmp_path / "team", server.url, broker=redis_url)
        project.ledger.acknowledge_server()
        with (project.directory / "team.py").open("a") as team:
            team.write(IMPATIENT)
        project.schedule(JOBS)
        try:
            project.beat()
            project.worker()
            wait_until(lambda: len(project.ledger.scheduled()) == 4, 20)
            yield server, project
        finally:
            project.stop()


def insisting(server: EmbeddedServer, project: Project, job: str) -> tuple[Run, int]:
    """A run that has ended, and its process, which cannot report it."""
    ledger = project.ledger
    run = ledger.trigger(ledger.spec(job))
    child = wait_until(lambda: project.starts(job), 20)[0].pid
    server.stop()
    project.let_end(run.id)
    wait_until(lambda: project.events("worker1", "ledger away"), 20)
    return run, child


def ended(project: Project, run: Run) -> Run:
    wait_until(lambda: not project.ledger.run(run.id).state.is_open, 30)
    return project.ledger.run(run.id)


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
def test_a_child_ended_before_it_could_report_has_not_worked_in_vain(
    fragile: tuple[EmbeddedServer, Project], number: int
) -> None:
    server, project = fragile
    run, child = insisting(server, project, "work")
    os.kill(child, number)
    # As it dies, and again with the next beat of the worker's heart.
    wait_until(lambda: len(project.events("worker1", "dead child not reported")) >= 2)
    server.start()
    done = ended(project, run)
    assert [attempt.outcome for attempt in done.attempts] == ["succeeded"]
    assert done.reason is None
    assert len(project.starts("work")) == 1


def test_a_failure_that_its_child_could_not_report_is_none_of_the_worker(
    fragile: tuple[EmbeddedServer, Project],
) -> None:
    server, project = fragile
    run, child = insisting(server, project, "fails")
    os.kill(child, SIGKILL)
    server.start()
    done = ended(project, run)
    assert [attempt.outcome for attempt in done.attempts] == ["failed"]
    assert done.reason == f"worker process {child} died before it could say why"
    assert len(project.starts("fails")) == 1


@pytest.mark.parametrize("job", ["limited", "softly-limited"])
def test_a_time_limit_counts_for_the_work_and_not_for_its_report(
    fragile: tuple[EmbeddedServer, Project], job: str
) -> None:
    server, project = fragile
    run, child = insisting(server, project, job)
    started = project.starts(job)[0].at
    if job == "limited":
        wait_until(lambda: not is_alive(child), 20)
    else:
        wait_until(lambda: time.time() > started + 4)
    server.start()
    assert [attempt.outcome for attempt in ended(project, run).attempts] == ["succeeded"]
    assert len(project.starts(job)) == 1


def test_a_worker_that_stops_does_not_wait_for_an_unavailable_ledger(
    fragile: tuple[EmbeddedServer, Project],
) -> None:
    server, project = fragile
    insisting(server, project, "work")
    worker = project.processes[1]
    worker.send_signal(SIGTERM)
    status_of(worker, 40)
    assert project.events("worker1", "end not reported")
