"""A worker's proof of life: its runs come again, before their leases end, once it is gone."""

from __future__ import annotations

import os
from signal import SIGCONT, SIGKILL, SIGSTOP

from tests.acceptance.project import Project, needs_children
from tests.waiting import wait_until

#: Of a lease that decides about nothing here.
HOURS = "jobs: {held: {task: team.hold, every: 24h, lease_ttl: 2h}}"


def attempts(project: Project) -> list[int]:
    return [sign.attempt for sign in project.starts("held")]


def turns_of_beat(project: Project, number: int) -> None:
    ledger = project.ledger
    for _ in range(number):
        before = ledger.client.hget(ledger.keys.beat, "last_tick")
        wait_until(lambda b=before: ledger.client.hget(ledger.keys.beat, "last_tick") != b)


def test_a_run_of_a_killed_worker_comes_again_before_its_lease_ends(project: Project) -> None:
    project.deploy(HOURS)
    run = project.trigger("held")
    wait_until(lambda: attempts(project) == [1])
    project.worker()
    project.processes[1].kill()
    wait_until(lambda: attempts(project) == [1, 2])
    project.let_end(run.id)
    ended = project.run_when(run.id, "succeeded")
    assert [(a.outcome, a.reason) for a in ended.attempts] == [
        ("lost", f"worker {ended.attempts[0].worker} is gone"),
        ("succeeded", None),
    ]


def test_a_worker_that_is_started_again_finds_what_it_left(project: Project) -> None:
    project.deploy(HOURS)
    project.trigger("held")
    wait_until(lambda: attempts(project) == [1])
    for process in project.processes:
        process.kill()
        process.wait()
    project.worker()
    wait_until(lambda: attempts(project) == [1, 2])


@needs_children("the one that is killed")
def test_a_frozen_worker_is_not_taken_for_a_dead_one(project: Project) -> None:
    project.deploy(HOURS)
    run = project.trigger("held")
    wait_until(lambda: attempts(project) == [1])
    child = project.starts("held")[0].pid
    for pid in (project.processes[1].pid, child):
        os.kill(pid, SIGSTOP)
    turns_of_beat(project, 3)
    assert project.ledger.run(run.id).attempt == 1
    os.kill(child, SIGKILL)  # the main process is still there, and will report it
    turns_of_beat(project, 3)
    assert project.ledger.run(run.id).attempt == 1
    os.kill(project.processes[1].pid, SIGCONT)
    wait_until(lambda: attempts(project) == [1, 2])
