"""The solo and the threads pool: no time limits, no revokes, but leases and rescue all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.project import Project
from tests.acceptance.workers import Workers
from tests.conftest import DATABASES, database, emptied
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 2s}
jobs:
  work-1: {task: team.work, every: 24h}
  work-2: {task: team.work, every: 24h}
  work-3: {task: team.work, every: 24h}
  work-4: {task: team.work, every: 24h}
  hang: {task: team.hang, every: 24h}
  held: {task: team.hold, every: 24h}
  leaves: {task: team.leave, every: 24h}
"""

#: Of threads, more than there are workers: two are in one process.
AT_ONCE = {"solo": 2, "threads": 4}


@pytest.fixture(scope="module", params=["solo", "threads"])
def shared_workers(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    project = Project(
        tmp_path_factory.mktemp(request.param),
        database(server.url, DATABASES),
        environ={"SUPERVISOR_ANY_POOL": "1"},
    )
    emptied(project.url)
    project.schedule(JOBS)
    try:
        project.beat()
        project.wait_for_jobs()
        yield Workers(project, ("-P", request.param))
    finally:
        project.stop()


def test_runs_side_by_side_keep_their_leases_and_succeed(workers: Workers) -> None:
    jobs = [f"work-{number + 1}" for number in range(AT_ONCE[workers.options[1]])]
    runs = [workers.trigger(job, 4.5) for job in jobs]
    for run in runs:
        workers.project.run_when(run.id, "succeeded")
        assert workers.outcomes(run) == ["succeeded"]
        assert len(workers.starts(run)) == len(workers.ends(run)) == 1
        assert workers.lock_is_free(run.job)
        for sign in ("rescued", "overlaps", "leases_lost"):
            assert workers.count(run.job, sign) == 0


def test_a_cancelled_run_is_ended_in_the_main_thread_alone(workers: Workers) -> None:
    run = workers.trigger("held")
    workers.start_of(run)
    worker = workers.worker_of(run)
    assert workers.project.supervisor("cancel", run.id).returncode == 0
    if workers.options[1] == "solo":
        workers.project.run_when(run.id, "cancelled")
    else:
        wait_until(lambda: workers.project.events_of(worker, "run not interrupted"))
        workers.project.let_end(run.id)
        workers.project.run_when(run.id, "succeeded")
    assert worker.poll() is None


def test_sys_exit_and_memory_error_fail_a_run_and_no_worker(workers: Workers) -> None:
    before = workers.alive
    for how in ("exit", "memory"):
        run = workers.project.run_when(workers.trigger("leaves", how).id, "failed")
        assert workers.outcomes(run) == ["failed"]
        assert workers.lock_is_free("leaves")
    workers.project.run_when(workers.trigger("work-1").id, "succeeded")
    assert workers.alive == before


def test_a_run_whose_worker_was_killed_comes_again(workers: Workers) -> None:
    run = workers.trigger("hang")
    start = workers.start_of(run)
    worker = workers.worker_of(run)
    assert start.pid == worker.pid
    worker.kill()
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert len(workers.ends(run)) == 1
