"""The solo and the threads pool: no time limits, no revokes, but leases and rescue all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.crew import Crew, crew_of, database
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
  fails: {task: team.fail, every: 24h}
  leaves: {task: team.leave, every: 24h}
"""

#: Of threads, more than there are workers: two are in one process.
AT_ONCE = {"solo": 2, "threads": 4}


@pytest.fixture(scope="module", params=["solo", "threads"])
def shared(
    request: pytest.FixtureRequest,
    server: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Crew]:
    directory, url = tmp_path_factory.mktemp(request.param), database(server.url, 11)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SUPERVISOR_ANY_POOL", "1")
        with crew_of(directory, url, JOBS, "-P", request.param) as crew:
            yield crew


@pytest.fixture
def crew(shared: Crew) -> Crew:
    return shared.staff()


def test_runs_at_work_side_by_side_keep_their_leases_and_succeed(crew: Crew) -> None:
    jobs = [f"work-{number + 1}" for number in range(AT_ONCE[crew.options[1]])]
    runs = [crew.trigger(job, 4.5) for job in jobs]
    for run in runs:
        crew.project.run_when(run.id, "succeeded")
        assert crew.outcomes(run) == ["succeeded"]
        assert len(crew.starts(run)) == len(crew.ends(run)) == 1
        assert crew.lock_is_free(run.job)
        for sign in ("rescued", "overlaps", "leases_lost"):
            assert crew.count(run.job, sign) == 0


def test_a_cancelled_run_is_ended_in_the_main_thread_alone(crew: Crew) -> None:
    run = crew.trigger("held")
    crew.start_of(run)
    worker = crew.worker_of(run)
    assert crew.project.supervisor("cancel", run.id).returncode == 0
    if crew.options[1] == "solo":
        crew.project.run_when(run.id, "cancelled")
    else:
        wait_until(lambda: crew.project.events_of(worker, "run not interrupted"))
        crew.project.let_end(run.id)
        crew.project.run_when(run.id, "succeeded")
    assert worker.poll() is None


def test_a_run_that_fails_says_why_and_gives_its_lock_back(crew: Crew) -> None:
    run = crew.project.run_when(crew.trigger("fails").id, "failed")
    assert run.reason == "ValueError: not yet"
    assert crew.lock_is_free("fails")


def test_sys_exit_and_memory_error_are_failures_of_the_run_alone(crew: Crew) -> None:
    before = crew.workers
    for how in ("exit", "memory"):
        run = crew.project.run_when(crew.trigger("leaves", how).id, "failed")
        assert crew.outcomes(run) == ["failed"]
        assert crew.lock_is_free("leaves")
    crew.project.run_when(crew.trigger("work-1").id, "succeeded")
    assert crew.workers == before


def test_a_run_whose_worker_was_killed_comes_again(crew: Crew) -> None:
    run = crew.trigger("hang")
    start = crew.start_of(run)
    worker = crew.worker_of(run)
    assert start.pid == worker.pid
    worker.kill()
    crew.project.run_when(run.id, "succeeded")
    assert crew.outcomes(run) == ["lost", "succeeded"]
    assert len(crew.ends(run)) == 1
