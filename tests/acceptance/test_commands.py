"""A program that a job runs does not outlive the run, whatever ends it."""

from __future__ import annotations

import os
from signal import SIGKILL

import pytest

from supervisor.job.run import Run
from tests.acceptance.project import Project
from tests.processes import is_alive, parent_of
from tests.waiting import wait_until

PROCESSES = 4

JOBS = """
defaults: {paused: true, on_crash: fail, lease_ttl: 5s}
jobs:
  runs: {task: team.family, every: 24h}
  limited: {task: team.family, every: 24h, time_limit: 6s}
  limited-softly: {task: team.family, every: 24h, soft_time_limit: 6s}
"""


def running(team: Project, job: str = "runs") -> tuple[Run, list[int]]:
    """A run of the job, and the processes of its program, once they are there."""
    run = team.trigger(job)
    there = team.directory / f"pids-{run.id}"
    wait_until(lambda: there.exists() and there.read_text().endswith("\n"), 20)
    pids = [int(pid) for pid in there.read_text().split()]
    assert all(map(is_alive, pids))
    return run, pids


def are_gone(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def test_a_program_ends_with_a_run_that_is_cancelled(team: Project) -> None:
    run, pids = running(team)
    team.supervisor("cancel", run.id)
    team.run_when(run.id, "cancelled")
    assert are_gone(pids)


def test_a_program_ends_with_a_child_that_is_killed(team: Project) -> None:
    run, pids = running(team)
    os.kill(parent_of(pids[0]), SIGKILL)
    wait_until(lambda: are_gone(pids))
    team.run_when(run.id, "lost")


@pytest.mark.parametrize("job", ["limited", "limited-softly"])
def test_a_program_ends_with_a_run_that_took_too_long(team: Project, job: str) -> None:
    run, pids = running(team, job)
    team.run_when(run.id, "timed_out")
    wait_until(lambda: are_gone(pids))


def test_a_program_ends_with_a_worker_that_is_killed(team: Project) -> None:
    _, pids = running(team)
    worker = parent_of(parent_of(pids[0]))
    assert worker == team.processes[-1].pid
    os.kill(worker, SIGKILL)
    wait_until(lambda: are_gone(pids))
