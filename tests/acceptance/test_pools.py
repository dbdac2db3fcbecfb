"""The pools without child processes: all of the guard, and no process that could be killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import RunState
from supervisor.testing import lease_runs_out
from tests.acceptance.project import Project
from tests.acceptance.workers import NEEDED, Workers
from tests.conftest import DATABASES, database, emptied
from tests.waiting import status_of, wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 3s}
jobs:
  work-1: {task: team.work, every: 24h}
  work-2: {task: team.work, every: 24h}
  work-3: {task: team.work, every: 24h}
  work-4: {task: team.work, every: 24h}
  hang: {task: team.hang, every: 24h}
  held: {task: team.hold, every: 24h}
  heed: {task: team.heed, every: 24h}
  leaves: {task: team.leave, every: 24h}
  fails: {task: team.fail, every: 24h, max_retries: 1, retry_backoff: 1s}
  stays: {task: team.stubborn, every: 24h, queue: alone}
  outlives: {task: team.stubborn, every: 24h, queue: beside, overlap: queue_one, on_crash: fail}
  unstored: {task: team.unstored, every: 24h, overlap: allow}
  spins: {task: team.spin, every: 24h}
  bounded: {task: team.bounded, every: 24h}
  limited: {task: team.work, every: 24h, time_limit: 2s}
  soft: {task: team.work, every: 24h, soft_time_limit: 2s, queue: soft}
  replaces: {task: team.work, every: 24h, overlap: replace, queue: soft}
"""

#: A task whose result cannot be stored, nor that it could not.
SETTINGS = """
from celery.backends.base import KeyValueStoreBackend

class Away(KeyValueStoreBackend):
    def set(self, key, value):
        raise ConnectionError("away")

    get = set

@app.task(soft_time_limit=300, time_limit=600)
def bounded():
    pass

@app.task(bind=True, backend=Away(app=app))
def unstored(self):
    sign("start", self)
"""

#: Of threads and greenlets, more than there are workers: two are in one process.
AT_ONCE = {"solo": 2, "threads": 4, "gevent": 4}


@pytest.fixture(scope="module", params=["solo", "threads", "gevent"])
def shared_workers(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    project = Project(tmp_path_factory.mktemp(request.param), database(server.url, DATABASES))
    emptied(project.url)
    project.extend(SETTINGS)
    project.schedule(JOBS)
    try:
        project.beat()
        project.wait_for_jobs()
        yield Workers(project, ("-P", request.param), size=NEEDED)
    finally:
        project.stop()


def pool_of(workers: Workers) -> str:
    return workers.options[1]


def test_runs_side_by_side_keep_their_leases_and_succeed(workers: Workers) -> None:
    jobs = [f"work-{number + 1}" for number in range(AT_ONCE[pool_of(workers)])]
    runs = [workers.trigger(job, 4.5) for job in jobs]
    for run in runs:
        workers.project.run_when(run.id, "succeeded")
        assert workers.outcomes(run) == ["succeeded"]
        assert len(workers.starts(run)) == len(workers.ends(run)) == 1
        assert workers.lock_is_free(run.job)
        for sign in ("rescued", "overlaps", "leases_lost"):
            assert workers.count(run.job, sign) == 0


def test_a_cancelled_run_is_interrupted_but_in_a_thread(workers: Workers) -> None:
    run = workers.trigger("held")
    workers.start_of(run)
    worker = workers.worker_of(run)
    assert workers.project.supervisor("cancel", run.id).returncode == 0
    if pool_of(workers) == "threads":
        wait_until(lambda: workers.project.events_of(worker, "run asked to end"))
        workers.project.let_end(run.id)
        workers.project.run_when(run.id, "succeeded")
    else:
        workers.project.run_when(run.id, "cancelled")
        assert len(workers.ends(run)) == 1
    assert worker.poll() is None


def test_a_run_that_looks_sees_that_it_is_cancelled(workers: Workers) -> None:
    run, other = workers.trigger("heed"), workers.trigger("held")
    workers.start_of(run)
    workers.start_of(other)
    assert workers.project.supervisor("cancel", run.id).returncode == 0
    workers.project.run_when(run.id, "cancelled")
    workers.project.let_end(other.id)
    workers.project.run_when(other.id, "succeeded")


def test_a_task_that_celery_terminates_is_cancelled(workers: Workers) -> None:
    if pool_of(workers) == "solo":  # it hears of nothing while a task runs
        return
    run = workers.trigger("heed")
    workers.start_of(run)

    def is_cancelled() -> bool:
        """A worker that has just come may not hear the first word."""
        workers.project.code(f"team.app.control.revoke({run.id!r}, terminate=True); print(1)")
        return workers.project.ledger.run(run.id).state is RunState.CANCELLED

    wait_until(is_cancelled, every=1)


def test_sys_exit_and_memory_error_fail_a_run_and_no_worker(workers: Workers) -> None:
    before = workers.alive
    for how in ("exit", "memory"):
        run = workers.project.run_when(workers.trigger("leaves", how).id, "failed")
        assert workers.outcomes(run) == ["failed"]
        assert workers.lock_is_free("leaves")
    workers.project.run_when(workers.trigger("work-1").id, "succeeded")
    assert workers.alive == before


def test_a_failed_attempt_is_tried_again(workers: Workers) -> None:
    run = workers.project.run_when(workers.trigger("fails").id, "failed")
    assert workers.outcomes(run) == ["failed", "failed"]
    assert [sign.attempt for sign in workers.starts(run)] == [1, 2]


def test_results_that_cannot_be_stored_take_no_places(workers: Workers) -> None:
    runs = [workers.trigger("unstored") for _ in range(AT_ONCE["threads"] + 2)]
    for run in runs:
        workers.project.run_when(run.id, "succeeded")
        assert len(workers.starts(run)) == 1


def test_a_run_whose_worker_was_killed_comes_again(workers: Workers) -> None:
    run = workers.trigger("hang")
    start = workers.start_of(run)
    worker = workers.worker_of(run)
    assert start.pid == worker.pid
    worker.kill()
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert len(workers.ends(run)) == 1


def test_a_worker_that_is_told_to_stop_ends_its_runs_first(workers: Workers) -> None:
    run = workers.trigger("held")
    workers.start_of(run)
    worker = workers.worker_of(run)
    workers.stop(worker, signal.SIGTERM)
    workers.project.let_end(run.id)
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["succeeded"]
    assert status_of(worker, 20) == 0


def test_a_run_of_a_greenlet_that_a_cold_shutdown_ended_comes_again(workers: Workers) -> None:
    if pool_of(workers) != "gevent":  # the others wait for it
        return
    run = workers.trigger("hang")
    workers.start_of(run)
    workers.stop(workers.worker_of(run), signal.SIGQUIT)
    lost, again = workers.project.run_when(run.id, "succeeded").attempts
    assert (lost.outcome, lost.reason) == ("lost", "the worker's process was asked to stop")
    assert again.outcome == "succeeded"


def test_a_run_with_a_limit_that_the_pool_lacks_is_refused(workers: Workers) -> None:
    project = workers.project
    if pool_of(workers) == "gevent":  # which has the hard one
        run = project.run_when(workers.trigger("limited", 60).id, "timed_out")
        assert workers.outcomes(run) == ["timed_out"]
    if pool_of(workers) != "threads":  # the three are alike in the rest
        return
    unfit = project.worker(*workers.options, queues="soft")
    workers.others.append(unfit)
    runs = workers.trigger("soft", 60), workers.trigger("replaces")
    wait_until(lambda: len({e["job"] for e in project.events_of(unfit, "run refused")}) == 2, 20)
    assert workers.starts(runs[0]) == []
    output = project.supervisor("why", "soft").stdout
    assert "its job needs: soft_time_limit" in output
    assert "its pool, threads, lacks soft_time_limit" in output
    assert "which lacks what job soft needs" in project.supervisor("doctor").stdout
    workers.stop(unfit, signal.SIGTERM)  # else their messages may come to it many times more
    workers.others.append(project.worker(queues="soft"))
    project.run_when(runs[0].id, "timed_out", 120)
    project.run_when(runs[1].id, "succeeded", 120)
    assert unfit.pid not in {sign.pid for run in runs for sign in workers.starts(run)}


def test_a_time_limit_of_the_task_itself_is_accepted_with_a_warning(workers: Workers) -> None:
    run = workers.project.run_when(workers.trigger("bounded").id, "succeeded")
    [logged] = workers.project.events_of(workers.worker_of(run), "limit of a task has no effect")
    pool = pool_of(workers)
    lacks = "soft_time_limit" if pool == "gevent" else "time_limit"
    assert (logged["task"], logged["limit"], logged["pool"]) == ("team.bounded", lacks, pool)


def test_a_run_never_starts_beside_itself_in_one_process(workers: Workers) -> None:
    """A worker that froze finds the message of the next attempt, and goes on with the last one."""
    if pool_of(workers) == "solo":
        return
    worker = workers.hire_for("alone")
    run = workers.trigger("stays")
    workers.start_of(run)
    worker.send_signal(signal.SIGSTOP)
    workers.project.run_when(run.id, "queued")
    # A worker that wakes up before that may take its run back, and then no message is sent.
    ledger = workers.project.ledger
    wait_until(lambda: ledger.client.zscore(ledger.keys.sent, run.id))
    worker.send_signal(signal.SIGCONT)

    def knows() -> bool:
        """It found the message, or took the run back, whose message its socket may have lost."""
        assert worker.poll() is None, workers.project.log_of(worker)
        is_kept_out = workers.project.events_of(worker, "run kept out")
        return bool(is_kept_out or workers.count("stays", "reasserted"))

    wait_until(knows, 30)
    workers.project.let_end(run.id)
    workers.project.run_when(run.id, "succeeded", 40)
    signs = [sign.event for sign in workers.project.witness("stays") if sign.run == run.id]
    assert signs in (["start", "end"], ["start", "end"] * 2)
    assert workers.count("stays", "overlaps") == 0


def test_a_run_kept_out_by_code_of_the_last_one_says_so(workers: Workers) -> None:
    if pool_of(workers) == "solo":
        return
    project, ledger = workers.project, workers.project.ledger
    worker = workers.hire_for("beside")
    last = workers.trigger("outlives")
    workers.start_of(last)
    run = workers.trigger("outlives")
    ledger.drains.drain("beside")  # until the worker knows that the lease is lost
    lease_runs_out(ledger, last.id)
    ledger.rescue()
    assert ledger.run(last.id).state is RunState.LOST
    events = ("run interrupted", "run asked to end")
    wait_until(lambda: any(project.events_of(worker, event) for event in events), 20)
    ledger.drains.undrain("beside")
    obstacle = f"code of {last.id} still runs there without its lease"
    wait_until(lambda: obstacle in project.supervisor("why", run.id).stdout, 20)
    assert project.events_of(worker, "run kept out")
    assert workers.starts(run) == []
    project.let_end(last.id)
    project.let_end(run.id)
    assert project.run_when(run.id, "succeeded", 40).obstacle is None
    assert workers.count("outlives", "overlaps") == 0


def test_a_greenlet_that_computes_is_told_that_its_lease_was_lost(workers: Workers) -> None:
    if pool_of(workers) != "gevent":
        return
    run = workers.trigger("spins", 6)
    workers.start_of(run)
    worker = workers.worker_of(run)
    workers.project.run_when(run.id, "succeeded", 40)
    assert workers.outcomes(run) == ["lost", "succeeded"]
    wait_until(lambda: workers.project.events_of(worker, "run interrupted"))
    wait_until(lambda: len(workers.ends(run)) == 2)
    assert worker.poll() is None
