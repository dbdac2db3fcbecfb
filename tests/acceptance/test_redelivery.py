"""A message that the broker delivers more than once, or that is sent twice: its run works once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGQUIT, SIGSTOP

import pytest
import redis
from celery import Celery

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.ledger.replies import ms_of
from supervisor.ledger.requests import Tick
from tests.acceptance.crew import Crew, crew_of, database
from tests.acceptance.project import Project
from tests.waiting import status_of, wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 1s}
jobs:
  work: {task: team.work, every: 24h}
  hang: {task: team.hang, every: 24h}
  rejects: {task: team.leave, every: 24h, args: [reject]}
  cut: {task: team.hold, every: 24h}
  cut-and-killed: {task: team.hang, every: 24h}
"""

#: Messages are acknowledged at the end, and come again after two seconds.
LATE = """
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
assert app.conf.worker_disable_prefetch
app.conf.update(worker_disable_prefetch=False, worker_prefetch_multiplier=4)
"""


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    url = database(server.url, 12)
    with crew_of(tmp_path_factory.mktemp("late"), url, JOBS, settings=LATE, processes=4) as crew:
        yield crew


@pytest.fixture
def crew(shared: Crew) -> Crew:
    return shared.staff()


def cut_connections(url: str) -> None:
    """All of them on this database: the broker's, the ledger's, beat's."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        own, number = client.client_id(), url.rpartition("/")[2]
        for connection in client.client_list():
            if connection["db"] == number and connection["id"] != str(own):
                client.client_kill_filter(_id=connection["id"])


def test_a_run_outlasts_the_visibility_timeout_of_its_message(crew: Crew, tmp_path: Path) -> None:
    client, other = crew.project.ledger.client, tmp_path / "unguarded"
    with Celery(broker=crew.project.url) as app:
        unguarded = app.send_task("team.unguarded", args=[str(other), 4])
    wait_until(other.exists)
    run = crew.trigger("work", 4)
    crew.start_of(run)
    kept = "".join(client.hvals("unacked"))
    assert unguarded.id in kept
    assert run.id not in kept
    crew.project.run_when(run.id, "succeeded")
    # The message of a task that is not supervised comes again, as ever.
    wait_until(lambda: other.read_text().split()[1:])
    assert crew.outcomes(run) == ["succeeded"]
    assert len(crew.starts(run)) == len(crew.ends(run)) == 1


def test_a_run_that_rejects_its_message_ends_for_good(crew: Crew) -> None:
    run = crew.project.run_when(crew.trigger("rejects").id, "succeeded")
    assert run.reason == "rejected"
    wait_until(lambda: crew.count("rejects", "duplicates"))
    ledger = crew.project.ledger
    # One that goes round is refused again and again meanwhile.
    crew.project.run_when(crew.trigger("work", 1).id, "succeeded")
    assert crew.count("rejects", "duplicates") < 5
    wait_until(lambda: not ledger.client.llen("celery") and not ledger.client.exists("unacked"))
    assert len(crew.starts(run)) == 1


def test_a_run_whose_broker_connection_is_cut_goes_on_alone(crew: Crew) -> None:
    run = crew.trigger("cut")
    crew.start_of(run)
    cut_connections(crew.project.url)
    wait_until(lambda: crew.count("cut", "duplicates"))
    crew.project.let_end(run.id)
    crew.project.run_when(run.id, "succeeded")
    assert crew.outcomes(run) == ["succeeded"]
    assert len(crew.starts(run)) == len(crew.ends(run)) == 1


def test_a_run_whose_copy_was_dropped_comes_again_when_its_child_is_killed(crew: Crew) -> None:
    run = crew.trigger("cut-and-killed")
    child = crew.start_of(run).pid
    cut_connections(crew.project.url)
    wait_until(lambda: crew.count("cut-and-killed", "duplicates"))
    os.kill(child, 9)
    crew.project.run_when(run.id, "succeeded", 20)
    assert crew.outcomes(run) == ["lost", "succeeded"]
    assert len(crew.starts(run)) == 2


@pytest.mark.parametrize("victim", ["child", "worker"])
def test_a_killed_process_leaves_one_further_attempt(crew: Crew, victim: str) -> None:
    run = crew.trigger("hang")
    child = crew.start_of(run).pid
    worker = crew.worker_of(run)
    duplicates = crew.count("hang", "duplicates")
    os.kill(child if victim == "child" else worker.pid, 9)
    crew.project.run_when(run.id, "succeeded")
    # Celery puts the message of a dead child back: it comes to another, and starts nothing.
    if victim == "child":
        wait_until(lambda: crew.count("hang", "duplicates") > duplicates)
    assert crew.outcomes(run) == ["lost", "succeeded"]
    assert len(crew.starts(run)) == 2
    assert len(crew.ends(run)) == 1


def test_a_message_no_child_has_taken_is_put_back_when_the_worker_stops(
    project: Project,
) -> None:
    with (project.directory / "team.py").open("a") as team:
        team.write(GREEDY)
    project.schedule(JOBS)
    crew = Crew(project)
    beat = project.beat()
    wait_until(project.ledger.scheduled, 20)
    worker = project.worker(processes=1)
    crew.start_of(crew.trigger("hang"))
    beat.kill()  # it would publish the run again
    waiting = crew.trigger("work")
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
    ledger.client.zrem(ledger.keys.sent, tick.run_id)
    ledger.client.zadd(ledger.keys.outbox, {tick.run_id: ms_of(ledger.now())})
    ledger.client.delete("redbeat::lock")
    project.beat()
    wait_until(lambda: ledger.client.llen("celery") == 2)
    first.send_signal(SIGCONT)
    project.worker()
    wait_until(lambda: ledger.job("steady").counters.get("duplicates"))
    project.run_when(tick.run_id, "succeeded")
    assert len(project.starts("steady")) == 1
    assert ledger.job("steady").counters["ticks"] == 1
