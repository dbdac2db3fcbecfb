"""What is killed or frozen without a word: who gives the lock back, when, and what comes again."""

from __future__ import annotations

import os
import sys
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from celery import Celery

from tests.acceptance.project import Project, needs_children
from tests.acceptance.workers import Workers
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, overlap: queue_one}
jobs:
  held: {task: team.hold, every: 24h, lease_ttl: 3s}
  hang: {task: team.hang, every: 24h, lease_ttl: 3s}
  gives-up: {task: team.work, every: 24h, on_crash: fail, lease_ttl: 2h}
  kills-itself: {task: team.leave, every: 24h, args: [kill], max_crashes: 3}
  clings: {task: team.cling, every: 24h, time_limit: 1s}
  revoked: {task: team.cling, every: 24h}
  freezes: {task: team.hang, every: 24h, lease_ttl: 2s, time_limit: 5s}
"""

#: Notes what other threads of a worker than the main one import.
SETTINGS = """
import threading

def note(event, args):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        with WITNESS.with_name("imports").open("a") as file:
            file.write(f"{threading.current_thread().name} {args[0]}\\n")

if "worker" in sys.argv:
    sys.addaudithook(note)
"""


@pytest.fixture(scope="module")
def shared_workers(shared: Project) -> Workers:
    shared.is_cold = True  # whatever a thread imports is imported there
    shared.beat()
    shared.wait_for_jobs()
    return Workers(shared)


@needs_children("one is killed")
def test_a_killed_child_gives_its_lock_away_before_its_lease_ends(workers: Workers) -> None:
    killed, waiting = workers.trigger("gives-up", 60), workers.trigger("gives-up", 0)
    child = workers.start_of(killed).pid
    assert workers.project.ledger.run(waiting.id).state == "waiting"
    os.kill(child, SIGKILL)
    workers.start_of(waiting)
    lost = workers.project.run_when(killed.id, "lost")
    assert lost.reason == f"worker process {child} died"
    assert (workers.outcomes(killed), len(workers.starts(killed))) == (["lost"], 1)

    def lines() -> list[str]:
        log = workers.project.logs().splitlines()
        return [line for line in log if "child died" in line and killed.id in line]

    wait_until(lambda: len(lines()) == 1)
    assert "WorkerLostError" not in workers.project.logs(), "Celery's line has a traceback"


@needs_children("one is killed")
def test_no_child_is_forked_while_a_thread_of_its_worker_imports(workers: Workers) -> None:
    """The child would wait for the import's lock for ever, in its first run."""
    run = workers.trigger("hang")
    os.kill(workers.start_of(run).pid, SIGKILL)
    workers.project.run_when(run.id, "succeeded")
    assert not (workers.project.directory / "imports").exists()


@needs_children("it would kill the worker, and each that follows")
def test_a_run_that_kills_its_child_each_time_is_given_up(workers: Workers) -> None:
    run = workers.trigger("kills-itself")
    workers.project.run_when(run.id, "lost")
    assert workers.outcomes(run) == ["lost", "lost", "lost"]
    assert [sign.attempt for sign in workers.starts(run)] == [1, 2, 3]
    assert workers.lock_is_free("kills-itself")
    assert workers.count("kills-itself", "rescued") == 2


@needs_children("one is killed")
def test_children_start_in_a_worker_whose_own_code_has_asked_others(project: Project) -> None:
    """Each closes a copy of the connection by which the worker's code has waited for replies: the
    first one takes the last reply from there, and those after it would wait for another for ever.
    """
    project.extend("""
from celery import signals

@signals.worker_ready.connect(weak=False)
def ask(**_):
    app.control.inspect(timeout=0.1).ping()
""")
    project.deploy(JOBS, processes=1)
    run = project.trigger("kills-itself")
    project.run_when(run.id, "lost")
    assert [sign.attempt for sign in project.starts("kills-itself")] == [1, 2, 3]


@needs_children("a run that clings cannot be killed")
def test_a_hard_limit_kills_a_child_that_clings(workers: Workers) -> None:
    run = workers.trigger("clings")
    workers.project.run_when(run.id, "timed_out")
    assert workers.outcomes(run) == ["timed_out"]
    assert workers.lock_is_free("clings")


@needs_children("a run that clings cannot be killed")
def test_a_revoke_that_kills_the_child_cancels_its_run(workers: Workers) -> None:
    run = workers.trigger("revoked")
    workers.start_of(run)
    Celery(broker=workers.project.url).control.revoke(run.id, terminate=True, signal="SIGKILL")
    workers.project.run_when(run.id, "cancelled")
    assert workers.outcomes(run) == ["cancelled"]
    assert workers.lock_is_free("revoked")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of the killed")
def test_no_child_of_a_killed_worker_works_on_beside_its_successor(workers: Workers) -> None:
    run = workers.trigger("held")
    orphan = workers.start_of(run).pid
    workers.worker_of(run).kill()
    workers.start_of(run, 2)
    workers.project.let_end(run.id)
    workers.project.run_when(run.id, "succeeded")
    assert orphan not in [sign.pid for sign in workers.ends(run)]
    assert len(workers.ends(run)) == 1
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert workers.count("held", "overlaps") == 0


def test_a_worker_that_wakes_up_too_late_is_refused(workers: Workers) -> None:
    run = workers.trigger("held")
    child = workers.start_of(run).pid
    worker = workers.worker_of(run).pid
    overlaps = workers.count("held", "overlaps")
    for pid in (worker, child):
        os.kill(pid, SIGSTOP)
    again = workers.start_of(run, 2)
    for pid in (child, worker):
        os.kill(pid, SIGCONT)
    wait_until(lambda: workers.count("held", "overlap_ms"))
    workers.project.let_end(run.id)
    wait_until(lambda: len(workers.ends(run)) == 2)
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert again.fencing_token > workers.starts(run)[0].fencing_token
    assert workers.count("held", "overlaps") == overlaps + 1
    assert workers.count("held", "overlap_ms") > 0


@needs_children("the whole worker would freeze")
def test_a_frozen_child_keeps_its_lock_until_its_time_limit(workers: Workers) -> None:
    run = workers.trigger("freezes")
    os.kill(workers.start_of(run).pid, SIGSTOP)
    done = workers.project.run_when(run.id, "timed_out")
    assert done.started_at is not None
    assert done.finished_at is not None
    assert (done.finished_at - done.started_at).total_seconds() > 4
    assert workers.outcomes(run) == ["timed_out"]
    assert len(workers.starts(run)) == 1
    assert workers.lock_is_free("freezes")
