"""What is killed or frozen without a word: who gives the lock back, when, and what comes again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from celery import Celery

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.crew import Crew, crew_of, database
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, overlap: queue_one}
jobs:
  held: {task: team.hold, every: 24h, lease_ttl: 1s}
  hang: {task: team.hang, every: 24h, lease_ttl: 1s}
  gives-up: {task: team.work, every: 24h, on_crash: fail}
  kills-itself: {task: team.leave, every: 24h, args: [kill], max_crashes: 3}
  clings: {task: team.cling, every: 24h, time_limit: 1s}
  revoked: {task: team.cling, every: 24h}
  freezes: {task: team.hang, every: 24h, lease_ttl: 1s, time_limit: 3s}
"""

#: Notes what other threads of a worker than the main one import.
IMPORTS = """
import threading

def note(event, args):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        with WITNESS.with_name("imports").open("a") as file:
            file.write(f"{threading.current_thread().name} {args[0]}\\n")

if "worker" in sys.argv:
    sys.addaudithook(note)
"""

#: The lease of the jobs that do not say another.
LEASE_TTL = 30.0


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    url = database(server.url, 13)
    with crew_of(tmp_path_factory.mktemp("kills"), url, JOBS, settings=IMPORTS) as crew:
        yield crew


@pytest.fixture
def crew(shared: Crew) -> Crew:
    return shared.staff()


def test_a_killed_child_gives_its_lock_on_long_before_its_lease_is_over(
    crew: Crew,
) -> None:
    killed, waiting = crew.trigger("gives-up", 60), crew.trigger("gives-up", 0)
    child = crew.start_of(killed).pid
    assert crew.project.ledger.run(waiting.id).state == "waiting"
    os.kill(child, SIGKILL)
    crew.start_of(waiting, timeout=LEASE_TTL / 2)
    crew.project.run_when(killed.id, "lost")


def test_a_run_that_must_not_run_again_is_lost_at_once(crew: Crew) -> None:
    run = crew.trigger("gives-up", 60)
    child = crew.start_of(run).pid
    os.kill(child, SIGKILL)
    lost = crew.project.run_when(run.id, "lost")
    assert lost.reason == f"worker process {child} died"
    assert crew.lock_is_free("gives-up")
    assert crew.outcomes(run) == ["lost"]
    assert len(crew.starts(run)) == 1


def test_no_child_is_forked_while_a_thread_of_its_worker_imports(crew: Crew) -> None:
    """Nobody would give the import's lock back to the child, which would hang in its first run."""
    run = crew.trigger("hang")
    os.kill(crew.start_of(run).pid, SIGKILL)
    crew.project.run_when(run.id, "succeeded")
    assert not (crew.project.directory / "imports").exists()


def test_a_run_that_kills_its_worker_is_given_up_after_max_crashes(crew: Crew) -> None:
    run = crew.trigger("kills-itself")
    crew.project.run_when(run.id, "lost")
    assert crew.outcomes(run) == ["lost", "lost", "lost"]
    assert [sign.attempt for sign in crew.starts(run)] == [1, 2, 3]
    assert crew.lock_is_free("kills-itself")
    assert crew.count("kills-itself", "rescued") == 2


def test_a_hard_limit_kills_a_child_that_clings_and_gives_its_lock_back(crew: Crew) -> None:
    run = crew.trigger("clings")
    crew.project.run_when(run.id, "timed_out")
    assert crew.outcomes(run) == ["timed_out"]
    assert crew.lock_is_free("clings")


def test_a_revoke_that_kills_the_child_cancels_its_run(crew: Crew) -> None:
    run = crew.trigger("revoked")
    crew.start_of(run)
    Celery(broker=crew.project.url).control.revoke(run.id, terminate=True, signal="SIGKILL")
    crew.project.run_when(run.id, "cancelled")
    assert crew.outcomes(run) == ["cancelled"]
    assert crew.lock_is_free("revoked")


def test_a_killed_worker_gives_the_lock_back_with_its_lease(crew: Crew) -> None:
    run = crew.trigger("hang")
    crew.start_of(run)
    crew.worker_of(run).kill()
    crew.project.run_when(run.id, "succeeded")
    assert crew.outcomes(run) == ["lost", "succeeded"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of the killed")
def test_no_child_of_a_killed_worker_works_on_beside_its_successor(crew: Crew) -> None:
    run = crew.trigger("held")
    orphan = crew.start_of(run).pid
    crew.worker_of(run).kill()
    crew.start_of(run, 2)
    crew.project.let_end(run.id)
    crew.project.run_when(run.id, "succeeded")
    assert orphan not in [sign.pid for sign in crew.ends(run)]
    assert len(crew.ends(run)) == 1
    assert crew.count("held", "overlaps") == 0


def test_a_worker_that_wakes_up_too_late_counts_as_one_overlap(
    crew: Crew,
) -> None:
    run = crew.trigger("held")
    child = crew.start_of(run).pid
    worker = crew.worker_of(run).pid
    overlaps = crew.count("held", "overlaps")
    for pid in (worker, child):
        os.kill(pid, SIGSTOP)
    again = crew.start_of(run, 2)
    for pid in (child, worker):
        os.kill(pid, SIGCONT)
    wait_until(lambda: crew.count("held", "overlap_ms"))
    crew.project.let_end(run.id)
    wait_until(lambda: len(crew.ends(run)) == 2)
    crew.project.run_when(run.id, "succeeded")
    assert crew.outcomes(run) == ["lost", "succeeded"]
    assert again.fencing_token > crew.starts(run)[0].fencing_token
    assert crew.count("held", "overlaps") == overlaps + 1
    assert crew.count("held", "overlap_ms") > 0


def test_a_frozen_child_keeps_its_lock_until_its_time_limit(crew: Crew) -> None:
    run = crew.trigger("freezes")
    os.kill(crew.start_of(run).pid, SIGSTOP)
    done = crew.project.run_when(run.id, "timed_out")
    assert done.started_at is not None
    assert done.finished_at is not None
    assert (done.finished_at - done.started_at).total_seconds() > 2
    assert crew.outcomes(run) == ["timed_out"]
    assert len(crew.starts(run)) == 1
    assert crew.lock_is_free("freezes")
