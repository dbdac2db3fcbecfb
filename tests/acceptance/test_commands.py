"""A program that a job runs does not outlive the run, whatever ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from signal import SIGKILL

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run
from tests.acceptance.project import Project
from tests.conftest import emptied
from tests.processes import is_alive, parent_of
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, on_crash: fail, lease_ttl: 2s}
jobs:
  runs: {task: team.family, every: 24h}
  limited: {task: team.family, every: 24h, time_limit: 3s}
  limited-softly: {task: team.family, every: 24h, soft_time_limit: 3s}
"""


@pytest.fixture(scope="module")
def team(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("team"), f"{server.url.rsplit('/', 1)[0]}/8")
    emptied(project.url)
    project.schedule(JOBS)
    try:
        project.beat()
        project.worker(processes=4)
        wait_until(lambda: len(project.ledger.scheduled()) == 3, 20)
        yield project
    finally:
        project.stop()


def at_work(team: Project, job: str = "runs") -> tuple[Run, list[int]]:
    """A run of the job, and the processes of its program, once they are there."""
    ledger = team.ledger
    run = ledger.trigger(ledger.spec(job))
    there = team.directory / f"pids-{run.id}"
    wait_until(lambda: there.exists() and there.read_text().endswith("\n"), 20)
    pids = [int(pid) for pid in there.read_text().split()]
    assert all(map(is_alive, pids))
    return run, pids


def are_gone(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def test_it_ends_with_a_run_that_is_cancelled(team: Project) -> None:
    run, pids = at_work(team)
    team.supervisor("cancel", run.id)
    team.run_when(run.id, "cancelled")
    assert are_gone(pids)


def test_it_ends_with_a_child_that_is_killed(team: Project) -> None:
    run, pids = at_work(team)
    os.kill(parent_of(pids[0]), SIGKILL)
    wait_until(lambda: are_gone(pids))
    team.run_when(run.id, "lost")


@pytest.mark.parametrize("job", ["limited", "limited-softly"])
def test_it_ends_with_a_run_that_took_too_long(team: Project, job: str) -> None:
    run, pids = at_work(team, job)
    team.run_when(run.id, "timed_out")
    wait_until(lambda: are_gone(pids))


def test_it_ends_with_a_worker_that_is_killed(team: Project) -> None:
    _, pids = at_work(team)
    worker = parent_of(parent_of(pids[0]))
    assert worker == team.processes[-1].pid
    os.kill(worker, SIGKILL)
    wait_until(lambda: are_gone(pids))
