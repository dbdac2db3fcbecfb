"""A message that the broker delivers more than once, or that is sent twice: its run works once."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from signal import SIGCONT, SIGQUIT, SIGSTOP

import pytest
import redis
from celery import Celery, states

from supervisor.installed import numbers
from supervisor.schedule.ticks import Tick
from supervisor.testing import leadership_runs_out
from tests.acceptance.project import POOL, Project, needs_children
from tests.acceptance.workers import Workers
from tests.damage import lose, stray
from tests.waiting import status_of, wait_until
from tools.matrix import since

PROCESSES = 4

not_in_solo = pytest.mark.skipif(POOL == "solo", reason="it takes no message while a task runs")
goes_on_once_cut = since("celery", "5.5", "a worker may hang once its connection was cut")

JOBS = """
defaults: {paused: true, lease_ttl: 3s}
jobs:
  work: {task: team.work, every: 24h}
  hang: {task: team.hang, every: 24h}
  rejects: {task: team.leave, every: 24h, args: [reject]}
  cut: {task: team.hold, every: 24h}
  cut-and-killed: {task: team.hang, every: 24h}
"""

#: Messages are acknowledged at the end, and come again after two seconds.
SETTINGS = """
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.broker_transport_options = {
    "visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1
}

@app.task
def unguarded(path, seconds):
    with open(path, "a") as file:
        file.write("started ")
    time.sleep(seconds)
"""

#: A worker that takes messages before a child is free for them.
GREEDY = """
app.finalize()
app.conf.worker_prefetch_multiplier = 5
"""


def cut_connections(url: str) -> None:
    """All of them on this database: the broker's, the ledger's, beat's."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        own, number = client.client_id(), url.rpartition("/")[2]
        for connection in client.client_list():
            if connection["db"] == number and connection["id"] != str(own):
                client.client_kill_filter(_id=connection["id"])


@since("kombu", "5.7", "messages come again after a hundred seconds at the earliest")
@pytest.mark.skipif(POOL == "gevent", reason="kombu looks for such messages too seldom there")
def test_a_run_outlasts_the_visibility_timeout(workers: Workers, tmp_path: Path) -> None:
    client, other = workers.project.ledger.client, tmp_path / "unguarded"
    with Celery(broker=workers.project.url) as app:
        unguarded = app.send_task("team.unguarded", args=[str(other), 4])
    wait_until(other.exists)
    run = workers.trigger("work", 4)
    workers.start_of(run)
    kept = "".join(client.hvals("unacked"))
    assert unguarded.id in kept
    assert run.id not in kept
    workers.project.run_when(run.id, "succeeded")
    # The message of a task that is not supervised comes again, as ever.
    wait_until(lambda: other.read_text().split()[1:])
    assert workers.outcomes(run) == ["succeeded"]
    assert len(workers.starts(run)) == len(workers.ends(run)) == 1


def test_the_message_of_a_run_that_rejects_it_does_not_go_round(workers: Workers) -> None:
    run = workers.project.run_when(workers.trigger("rejects").id, "succeeded")
    assert run.reason == "rejected"
    wait_until(lambda: workers.count("rejects", "duplicates"))
    ledger = workers.project.ledger
    # One that goes round is refused again and again meanwhile.
    workers.project.run_when(workers.trigger("work", 1).id, "succeeded")
    assert workers.count("rejects", "duplicates") < 5
    wait_until(lambda: not ledger.client.llen("celery") and not ledger.client.exists("unacked"))
    assert len(workers.starts(run)) == 1


def wait_for_the_copy(workers: Workers, refused_before: int) -> None:
    """Kombu before 5.7 may send the message again a hundred seconds later only."""
    if numbers(version("kombu")) >= numbers("5.7"):
        wait_until(lambda: workers.refused() > refused_before)


@goes_on_once_cut
@not_in_solo
def test_a_run_goes_on_when_its_broker_connection_is_cut(workers: Workers) -> None:
    run = workers.trigger("cut")
    workers.start_of(run)
    before = workers.refused()
    cut_connections(workers.project.url)
    wait_for_the_copy(workers, before)
    workers.project.let_end(run.id)
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["succeeded"]
    assert len(workers.starts(run)) == len(workers.ends(run)) == 1


@goes_on_once_cut
@not_in_solo
def test_a_run_whose_copy_was_dropped_comes_again_after_a_crash(workers: Workers) -> None:
    run = workers.trigger("cut-and-killed")
    child = workers.start_of(run).pid
    before = workers.refused()
    cut_connections(workers.project.url)
    wait_for_the_copy(workers, before)
    os.kill(child, 9)
    workers.project.run_when(run.id, "succeeded", 20)
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert len(workers.starts(run)) == 2


@needs_children("one is killed")
def test_a_killed_child_leaves_one_further_attempt(workers: Workers) -> None:
    run = workers.trigger("hang")
    os.kill(workers.start_of(run).pid, 9)
    workers.project.run_when(run.id, "succeeded")
    # Celery puts the message of a dead child back: it comes to another, and starts nothing.
    wait_until(lambda: workers.count("hang", "duplicates"))
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert len(workers.starts(run)) == 2
    assert len(workers.ends(run)) == 1


@needs_children("one is killed")
def test_the_caller_of_a_run_that_is_lost_learns_of_it(project: Project) -> None:
    project.extend(SETTINGS + "app.conf.result_backend = app.conf.broker_url")
    project.schedule("jobs: {hang: {task: team.hang, every: 24h, on_crash: fail}}")
    workers = Workers(project)
    project.beat()
    wait_until(project.ledger.scheduled, 20)
    project.worker(processes=1)
    run = workers.trigger("hang")
    os.kill(workers.start_of(run).pid, 9)
    project.run_when(run.id, "lost")
    with Celery(backend=project.url) as app:
        wait_until(lambda: app.AsyncResult(run.id).state == states.FAILURE, 20)


@needs_children("the worker waits for what it runs")
def test_a_message_that_no_child_took_is_put_back_as_the_worker_stops(project: Project) -> None:
    project.extend(GREEDY)
    project.schedule(JOBS)
    workers = Workers(project)
    beat = project.beat()
    wait_until(project.ledger.scheduled, 20)
    worker = project.worker(processes=1)
    workers.start_of(workers.trigger("hang"))
    beat.kill()  # it would publish the run again
    waiting = workers.trigger("work")
    client = project.ledger.client
    wait_until(lambda: not client.llen("celery"))
    worker.send_signal(SIGQUIT)
    status_of(worker, 30)
    messages = [json.loads(text) for text in client.lrange("celery", 0, -1)]
    assert waiting.id in [message["headers"]["id"] for message in messages]


def test_a_tick_that_two_beats_published_works_once(project: Project) -> None:
    project.schedule("jobs: {steady: {task: team.work, every: 24h}}")
    first = project.beat()
    ledger = project.ledger
    wait_until(lambda: "steady" in ledger.scheduled(), 20)
    tick = Tick(ledger.spec("steady"), ledger.now())
    ledger.admit([tick])
    wait_until(lambda: ledger.client.zcard(ledger.keys.sent))
    # A beat that falls asleep between sending the message and writing that down.
    first.send_signal(SIGSTOP)
    lose(ledger, ledger.keys.sent)
    stray(ledger, ledger.keys.outbox, tick.run_id)
    leadership_runs_out(ledger)
    project.beat()
    wait_until(lambda: ledger.client.llen("celery") == 2)
    first.send_signal(SIGCONT)
    project.worker()
    wait_until(lambda: ledger.job("steady").counters.get("duplicates"))
    project.run_when(tick.run_id, "succeeded")
    assert len(project.starts("steady")) == 1
    assert ledger.job("steady").counters["ticks"] == 1
