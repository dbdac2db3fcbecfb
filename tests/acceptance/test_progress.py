"""What a run says of itself, from a worker's child to the ledger and to Celery's result backend."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.guard.delivery import HEADER, message_header, of_job
from supervisor.job.run import Run, ulid
from tests.acceptance.crew import Crew, crew_of, database
from tests.waiting import patience, wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 5s, max_crashes: 1}
jobs:
  tells: {task: team.tell, every: 24h}
  fails: {task: team.tell, every: 24h, kwargs: {fails: true}}
  retries: {task: team.tell, every: 24h, kwargs: {fails: true}, max_retries: 1, retry_backoff: 1s}
  ignored: {task: team.tell_nobody, every: 24h}
"""

SETTINGS = """
app.conf.result_backend = app.conf.broker_url
app.conf.task_track_started = True
tell_nobody = app.task(bind=True, ignore_result=True, name="team.tell_nobody")(tell.run.__func__)
"""


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    directory, url = tmp_path_factory.mktemp("progress"), database(server.url, 12)
    with crew_of(directory, url, JOBS, settings=SETTINGS) as crew:
        yield crew


@pytest.fixture
def crew(shared: Crew) -> Crew:
    return shared.staff()


Stored = Callable[[Run | AsyncResult[Any]], list[str]]


@pytest.fixture
def stored(crew: Crew) -> Iterator[Stored]:
    """The states that the result backend was given of a run, in order: it tells of each."""
    client = redis.Redis.from_url(crew.project.url, decode_responses=True)
    told: list[dict[str, object]] = []
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe("celery-task-meta-*")
        channel.get_message(timeout=patience(5))

        def states(run: Run | AsyncResult[Any]) -> list[str]:
            while message := channel.get_message():
                told.append(json.loads(message["data"]))
            return [str(meta["status"]) for meta in told if meta["task_id"] == run.id]

        yield states
    client.close()


def texts(crew: Crew, run: Run) -> list[tuple[int, str]]:
    return [(line.attempt, line.text) for line in crew.project.ledger.reports.lines(run.id)]


def gate_of(crew: Crew) -> str:
    """What a run waits for, once somebody opens it; each call gives another."""
    return str(crew.project.directory / f"gate-{ulid()}")


def open_gate(path: str) -> None:
    Path(path).touch()


def test_a_run_is_heard_while_it_is_at_work_and_to_its_end(crew: Crew) -> None:
    gate = gate_of(crew)
    run = crew.trigger("tells", gate)
    at_work = wait_until(lambda: crew.project.ledger.run(run.id).progress, 20)
    assert (at_work.done, at_work.total, at_work.text) == (1, 4, "opened")
    wait_until(lambda: texts(crew, run) == [(1, "loaded 17 rows")])
    assert crew.project.ledger.run(run.id).state == "running"
    open_gate(gate)
    ended = crew.project.run_when(run.id, "succeeded")
    assert ended.progress is not None
    assert (ended.progress.done, ended.progress.text) == (4, "closed")
    assert texts(crew, run) == [(1, "loaded 17 rows"), (1, "the last line")]


def test_a_short_run_leaves_all_that_it_said(crew: Crew) -> None:
    run = crew.trigger("tells")
    ended = crew.project.run_when(run.id, "succeeded")
    assert ended.progress is not None
    assert ended.progress.done == 4
    assert texts(crew, run) == [(1, "loaded 17 rows"), (1, "the last line")]


def test_a_child_that_is_killed_leaves_its_last_lines(crew: Crew) -> None:
    run = crew.trigger("tells", gate_of(crew))
    child = crew.start_of(run).pid
    wait_until(lambda: texts(crew, run) == [(1, "loaded 17 rows")])
    os.kill(child, SIGKILL)
    lost = crew.project.run_when(run.id, "lost")
    assert lost.progress is not None
    assert lost.progress.text == "opened"
    assert texts(crew, run) == [(1, "loaded 17 rows")]


def test_the_result_backend_is_told_of_start_progress_and_success(
    crew: Crew, stored: Stored
) -> None:
    gate = gate_of(crew)
    run = crew.trigger("tells", gate)
    wait_until(lambda: stored(run)[-1:] == ["PROGRESS"], 20)
    result = Celery(backend=crew.project.url).AsyncResult(run.id)
    assert (result.state, result.info["text"]) == ("PROGRESS", "opened")
    assert (result.info["current"], result.info["total"]) == (1, 4)
    open_gate(gate)
    crew.project.run_when(run.id, "succeeded")
    states = stored(run)
    assert states[0] == "STARTED"
    assert set(states[1:-1]) == {"PROGRESS"}
    assert states[-1] == "SUCCESS"


def test_each_attempt_is_started_anew_and_the_last_word_is_celerys(
    crew: Crew, stored: Stored
) -> None:
    run = crew.trigger("retries")
    crew.project.run_when(run.id, "failed")
    states = [state for state in stored(run) if state != "PROGRESS"]
    assert states == ["STARTED", "RETRY", "STARTED", "FAILURE"]
    assert stored(run)[-1] == "FAILURE"
    assert [attempt for attempt, _ in texts(crew, run)] == [1, 1, 2, 2]


def test_a_delivery_that_is_refused_changes_no_result(crew: Crew, stored: Stored) -> None:
    gate = gate_of(crew)
    run = crew.trigger("tells", gate)
    wait_until(lambda: stored(run)[-1:] == ["PROGRESS"], 20)
    ledger = crew.project.ledger
    header = message_header(of_job(ledger.run(run.id), ledger.spec("tells"), "team.tell"), "celery")
    before = refused(crew)
    with Celery(broker=crew.project.url) as app:
        app.send_task("team.tell", [gate], task_id=run.id, headers={HEADER: header})
    wait_until(lambda: refused(crew) > before)
    assert stored(run) == ["STARTED", "PROGRESS"]
    open_gate(gate)
    crew.project.run_when(run.id, "succeeded")


def refused(crew: Crew) -> int:
    return sum(
        len(crew.project.events_of(worker, "delivery dropped"))
        for worker in crew.project.processes[1:]
    )


def test_what_is_no_run_is_tracked_as_celery_does(
    crew: Crew, stored: Stored, tmp_path: Path
) -> None:
    with Celery(broker=crew.project.url, backend=crew.project.url) as app:
        sent = app.send_task("team.unsupervised", [str(tmp_path / "proof")])
        assert sent.get(timeout=patience(20)) is None
        assert stored(sent) == ["STARTED", "SUCCESS"]


def test_a_task_that_ignores_its_results_has_none(crew: Crew, stored: Stored) -> None:
    gate = gate_of(crew)
    run = crew.trigger("ignored", gate)
    wait_until(lambda: crew.project.ledger.run(run.id).progress, 20)
    open_gate(gate)
    ended = crew.project.run_when(run.id, "succeeded")
    assert ended.progress is not None
    assert stored(run) == []
