"""A worker's end: its runs come again before their leases end, and no child lives on."""

from __future__ import annotations

import os
import signal
from signal import SIGCONT, SIGKILL, SIGSTOP

from tests.acceptance.project import Project, needs_children
from tests.processes import is_alive
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


# A worker that is killed as it forks a child takes this one with it, too


#: A child comes to ask the kernel to be killed with its worker when that was killed already.
SLOW_FORK = """
import select

def wait_for_the_end_of_the_worker():
    WITNESS.with_name(f"forked-{os.getpid()}").touch()
    select.select([os.pidfd_open(os.getppid())], [], [], 100)

os.register_at_fork(after_in_child=wait_for_the_end_of_the_worker)
"""


def test_a_child_that_was_forked_as_its_worker_was_killed_does_not_live_on(
    project: Project,
) -> None:
    project.extend(SLOW_FORK)
    worker = project.hire(processes=2)

    def forked() -> list[int]:
        return [
            int(path.name.removeprefix("forked-")) for path in project.directory.glob("forked-*")
        ]

    children = wait_until(lambda: len(forked()) == 2 and forked(), 30)
    assert all(map(is_alive, children))
    worker.kill()
    worker.wait()
    try:
        wait_until(lambda: not any(map(is_alive, children)), 30)
    finally:
        for child in filter(is_alive, children):
            os.kill(child, signal.SIGKILL)
