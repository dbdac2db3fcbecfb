"""What no job goes to, and what no job is, stays as Celery and the app have it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.acceptance.project import Process, Project
from tests.waiting import scaled, wait_until
from tests.written import json_lines
from tools.matrix import since

JOBS = """
defaults: {paused: true, lease_ttl: 10s}
jobs:
  described: {task: team.describe, every: 24h, args: [run], queue: ours}
  elsewhere: {task: team.describe, every: 24h, args: [moved], queue: theirs, start_deadline: 10m}
"""

#: Every task of the app is sent to a queue of its own, so that none but jobs' runs are elsewhere.
SETTINGS = """
app.conf.task_default_queue = "plain"
app.conf.result_backend = app.conf.broker_url
app.conf.task_track_started = True

@app.task(bind=True, Request=Announced)
def describe(self, name):
    run = current_run()
    modules = [own.__module__ for own in type(self).__mro__]
    told = {"run": run and run.run_id, "pid": os.getpid(), "modules": modules}
    WITNESS.with_name(name).write_text(json.dumps(told) + "\\n")

@app.task(bind=True)
def busy(self, gate):
    Path(f"{gate}-{self.request.id}").touch()
    wait_for(gate)

for task in list(app.tasks.values()):  # of the team's, some have a guard
    if getattr(task, "guard", None) is not None:
        task.queue = "guarded"
"""


@pytest.fixture(scope="module", autouse=True)
def beat(shared: Project) -> None:
    shared.beat()
    shared.wait_for_jobs()


def called(project: Project, name: str, queue: str) -> dict[str, Any]:
    project.code(f'team.describe.apply_async(["{name}"], queue="{queue}"); print(1)')
    return told(project, name)


def told(project: Project, name: str) -> dict[str, Any]:
    [found] = wait_until(lambda: json_lines(project.directory / name))
    return found


def is_under_the_guard(told: dict[str, Any]) -> bool:
    return any(module.startswith("supervisor.") for module in told["modules"])


def node(project: Project, worker: Process) -> str:
    return f"worker{project.processes.index(worker)}@{socket.gethostname()}"


def consume(project: Project, worker: Process, queue: str) -> None:
    called = f'"{queue}", destination=["{node(project, worker)}"], timeout={scaled(20)}'
    assert project.code(f"print(len(team.app.control.add_consumer({called}, reply=True)))") == 1


def leaves(project: Project, queue: str, gate: str, number: int) -> None:
    """So many of four messages a worker with two places, which is busy with two, leaves there."""
    path = project.directory / gate
    project.code(f'for _ in range(4): team.busy.apply_async(["{path}"], queue="{queue}")\nprint(1)')
    wait_until(lambda: len(list(project.directory.glob(f"{gate}-*"))) == 2)
    wait_until(lambda: project.ledger.client.llen(queue) == number)
    project.code("team.app.control.ping(timeout=1); print(1)")  # in which it takes no more
    assert project.ledger.client.llen(queue) == number
    path.touch()
    wait_until(lambda: len(list(project.directory.glob(f"{gate}-*"))) == 4)


def test_a_task_is_under_the_guard_with_its_first_run_and_not_before(shared: Project) -> None:
    worker = shared.worker(queues="ours", processes=1)
    before = called(shared, "before", "ours")
    assert (before["run"], is_under_the_guard(before)) == (None, False)
    run = shared.run_when(shared.trigger("described").id, "succeeded")
    during, after = told(shared, "run"), called(shared, "after", "ours")
    assert before["pid"] == during["pid"] == after["pid"]
    assert (during["run"], is_under_the_guard(during)) == (run.id, True)
    assert after["run"] is None
    # The task's own Request class took all three.
    assert len(list(shared.directory.glob("accepted-*"))) == 3
    worker.kill()
    worker.wait()


def test_only_workers_of_jobs_fetch_no_message_ahead(shared: Project) -> None:
    ours, theirs = (shared.worker(queues=name, processes=2) for name in ("ours", "nobodys"))
    leaves(shared, "ours", "by-ours", 2)
    leaves(shared, "nobodys", "by-theirs", 0)
    # The queue of a job, which the second worker consumes from now on.
    consume(shared, theirs, "theirs")
    shared.run_when(shared.trigger("elsewhere").id, "succeeded")
    leaves(shared, "nobodys", "by-both", 2)
    for worker in (ours, theirs):
        worker.kill()
        worker.wait()


def test_tasks_that_are_no_runs_are_run_by_a_thread_as_ever(shared: Project) -> None:
    threads = shared.worker("-P", "threads", queues="nobodys")
    there = called(shared, "by-a-thread", "nobodys")
    assert (there["pid"], is_under_the_guard(there)) == (threads.pid, False)
    consume(shared, threads, "theirs")
    run = shared.run_when(shared.trigger("elsewhere").id, "succeeded")
    during, after = told(shared, "moved"), called(shared, "by-another", "nobodys")
    assert during["pid"] == after["pid"] == threads.pid
    assert (during["run"], after["run"]) == (run.id, None)


@since("celery", "5.7", "it has no other way to make children")
def test_children_that_are_not_forked_have_plain_tasks_alone(shared: Project) -> None:
    spawn = ("--", "worker.pool_start_method=spawn")
    refused = shared.hire(*spawn, queues="ours")
    wait_until(lambda: refused.poll() is not None, 30)
    assert "leave worker_pool_start_method" in shared.log_of(refused)
