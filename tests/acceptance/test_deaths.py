"""What is killed while runs are at work comes back, once, and history tells of it."""

from __future__ import annotations

import os
import signal

from supervisor.ledger.replies import Placement
from supervisor.ledger.requests import Tick
from tests.acceptance.project import Project, overlapping, ticks_between
from tests.acceptance.test_ticks import accounted
from tests.waiting import status_of, wait_until

LONG = "jobs: {{long: {{task: team.hold, every: 24h, lease_ttl: {}, paused: true}}}}"


def test_a_run_whose_worker_was_killed_runs_again_after_its_lease(project: Project) -> None:
    project.schedule(LONG.format("4s"))
    project.beat()
    worker = project.worker()
    ledger = project.ledger
    wait_until(lambda: "long" in ledger.scheduled(), 20)
    run = ledger.trigger(ledger.spec("long"))
    wait_until(lambda: project.starts("long"))
    worker.kill()
    survivor = project.worker()
    again = wait_until(lambda: project.starts("long")[1:])[0]
    project.let_end(run.id)
    done = project.run_when(run.id, "succeeded")
    lost, second = done.attempts
    assert (lost.outcome, second.outcome) == ("lost", "succeeded")
    assert (second.started_at - lost.started_at).total_seconds() >= 4
    assert again.fencing_token > project.starts("long")[0].fencing_token
    assert ledger.job("long").counters["rescued"] == 1
    survivor.terminate()
    assert status_of(survivor, 30) == 0


def test_a_run_whose_child_was_killed_runs_again_at_once(project: Project) -> None:
    project.schedule(LONG.format("60s"))
    project.beat()
    project.worker()
    ledger = project.ledger
    wait_until(lambda: "long" in ledger.scheduled(), 20)
    run = ledger.trigger(ledger.spec("long"))
    child = wait_until(lambda: project.starts("long"))[0].pid
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: len(project.starts("long")) == 2)
    lost, _ = ledger.run(run.id).attempts
    assert lost.reason == f"worker process {child} died"


def test_a_lease_outlives_neither_a_long_run_nor_many_of_its_terms(project: Project) -> None:
    project.schedule("jobs: {long: {task: team.work, every: 1s, args: [4], lease_ttl: 1s}}")
    project.beat()
    project.worker()
    ledger = project.ledger
    wait_until(lambda: [s for s in project.witness("long") if s.event == "end"], 30)
    assert overlapping(project.witness("long")) == []
    assert ledger.job("long").counters["started"] <= 2
    assert "rescued" not in ledger.job("long").counters


def test_no_tick_is_lost_or_doubled_when_beat_is_killed(project: Project) -> None:
    project.schedule("jobs: {steady: {task: team.work, every: 1s, overlap: queue_all}}")
    project.worker()
    beat = project.beat()
    wait_until(lambda: len(project.starts("steady")) >= 2, 20)
    for _ in range(2):
        beat.kill()
        beat.wait()
        # What `up` and every init system do: the dead leader's lock has to run out first.
        beat = project.beat()
        seen = len(project.starts("steady"))
        wait_until(lambda seen=seen: len(project.starts("steady")) > seen + 1, 30)  # type: ignore[misc]
    assert set(ticks_between(project.starts("steady"))) == {1.0}
    wait_until(lambda: accounted(project.ledger, "steady"))


def test_a_tick_that_was_admitted_and_not_published_runs_once(project: Project) -> None:
    project.schedule("jobs: {steady: {task: team.work, every: 24h}}")
    beat = project.beat()
    ledger = project.ledger
    wait_until(lambda: "steady" in ledger.scheduled(), 20)
    beat.terminate()
    status_of(beat, 30)
    # All that a beat leaves that dies between the two: the ledger has the run, the broker has not.
    spec = ledger.spec("steady")
    tick = Tick(spec, ledger.now())
    assert ledger.admit([tick, tick])[0].placement is Placement.START
    assert ledger.client.llen("celery") == 0

    project.worker()
    project.beat()
    project.run_when(tick.run_id, "succeeded")
    assert len(project.starts("steady")) == 1
    assert ledger.job("steady").counters["ticks"] == 1


def test_a_second_copy_of_a_message_is_dropped_and_counted(project: Project) -> None:
    project.schedule(LONG.format("60s"))
    project.beat()
    ledger = project.ledger
    wait_until(lambda: "long" in ledger.scheduled(), 20)
    run = ledger.trigger(ledger.spec("long"))
    [message] = wait_until(lambda: ledger.client.lrange("celery", 0, -1))
    ledger.client.rpush("celery", message, message)
    project.worker(processes=3)
    wait_until(lambda: ledger.job("long").counters.get("duplicates", 0) >= 2, 20)
    project.let_end(run.id)
    project.run_when(run.id, "succeeded")
    assert len(project.starts("long")) == 1
    assert ledger.job("long").counters["finished:succeeded"] == 1


def test_a_message_that_vanished_is_published_again(project: Project) -> None:
    project.schedule(LONG.format("60s"))
    project.beat()
    ledger = project.ledger
    wait_until(lambda: "long" in ledger.scheduled(), 20)
    run = ledger.trigger(ledger.spec("long"))
    wait_until(lambda: ledger.client.llen("celery") == 1)
    ledger.client.delete("celery")
    # Sixteen seconds pass for this run.
    ledger.client.zincrby(ledger.keys.sent, -16_000, run.id)
    wait_until(lambda: ledger.client.llen("celery") == 1, 10)
    assert ledger.run(run.id).attempt == 0
