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

from supervisor.guard.delivery import HEADER, LEDGER
from supervisor.job.run import Run
from supervisor.job.run_ids import ulid
from supervisor.sending.messages import message_header, of_job
from tests.acceptance.project import needs_children
from tests.acceptance.workers import Workers
from tests.waiting import scaled, wait_until

WORKERS, PROCESSES = 1, 4

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


Stored = Callable[[Run | AsyncResult[Any]], list[str]]


@pytest.fixture
def stored(workers: Workers) -> Iterator[Stored]:
    """The states that the result backend was given of a run, in order: it tells of each."""
    client = redis.Redis.from_url(workers.project.url, decode_responses=True)
    seen: list[dict[str, object]] = []
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe("celery-task-meta-*")
        channel.get_message(timeout=scaled(5))

        def states(run: Run | AsyncResult[Any]) -> list[str]:
            while message := channel.get_message():
                seen.append(json.loads(message["data"]))
            return [str(meta["status"]) for meta in seen if meta["task_id"] == run.id]

        yield states
    client.close()


def texts(workers: Workers, run: Run) -> list[tuple[int, str]]:
    return [(line.attempt, line.text) for line in workers.project.ledger.reports.lines(run.id)]


def gate_of(workers: Workers) -> str:
    """What a run waits for, once it is opened; each call gives another."""
    return str(workers.project.directory / f"gate-{ulid()}")


def open_gate(path: str) -> None:
    Path(path).touch()


def test_progress_and_log_are_there_while_a_run_works_and_afterwards(workers: Workers) -> None:
    gate = gate_of(workers)
    run = workers.trigger("tells", gate)
    running = wait_until(lambda: workers.project.ledger.run(run.id).progress, 20)
    assert (running.done, running.total, running.text) == (1, 4, "opened")
    wait_until(lambda: texts(workers, run) == [(1, "loaded 17 rows")])
    assert workers.project.ledger.run(run.id).state == "running"
    open_gate(gate)
    ended = workers.project.run_when(run.id, "succeeded")
    assert ended.progress is not None
    assert (ended.progress.done, ended.progress.text) == (4, "closed")
    assert texts(workers, run) == [(1, "loaded 17 rows"), (1, "the last line")]


@needs_children("one is killed")
def test_a_child_that_is_killed_leaves_its_last_lines(workers: Workers) -> None:
    run = workers.trigger("tells", gate_of(workers))
    child = workers.start_of(run).pid
    wait_until(lambda: texts(workers, run) == [(1, "loaded 17 rows")])
    os.kill(child, SIGKILL)
    lost = workers.project.run_when(run.id, "lost")
    assert lost.progress is not None
    assert lost.progress.text == "opened"
    assert texts(workers, run) == [(1, "loaded 17 rows")]


def test_the_result_backend_gets_start_progress_and_success(
    workers: Workers, stored: Stored
) -> None:
    gate = gate_of(workers)
    run = workers.trigger("tells", gate)
    wait_until(lambda: stored(run)[-1:] == ["PROGRESS"], 20)
    result = Celery(backend=workers.project.url).AsyncResult(run.id)
    assert (result.state, result.info["text"]) == ("PROGRESS", "opened")
    assert (result.info["current"], result.info["total"]) == (1, 4)
    open_gate(gate)
    workers.project.run_when(run.id, "succeeded")
    states = stored(run)
    assert states[0] == "STARTED"
    assert set(states[1:-1]) == {"PROGRESS"}
    assert states[-1] == "SUCCESS"


def test_the_result_backend_gets_each_attempts_start_and_end(
    workers: Workers, stored: Stored
) -> None:
    run = workers.trigger("retries")
    workers.project.run_when(run.id, "failed")
    states = [state for state in stored(run) if state != "PROGRESS"]
    assert states == ["STARTED", "RETRY", "STARTED", "FAILURE"]
    assert stored(run)[-1] == "FAILURE"
    assert [attempt for attempt, _ in texts(workers, run)] == [1, 1, 2, 2]


def test_a_delivery_that_is_refused_changes_no_result(workers: Workers, stored: Stored) -> None:
    gate = gate_of(workers)
    run = workers.trigger("tells", gate)
    wait_until(lambda: stored(run)[-1:] == ["PROGRESS"], 20)
    ledger = workers.project.ledger
    of_run = of_job(ledger.run(run.id), ledger.spec("tells"), "team.tell")
    header = {**message_header(of_run, "celery"), LEDGER: ["supervisor", "team"]}
    before = workers.refused()
    with Celery(broker=workers.project.url) as app:
        app.send_task("team.tell", [gate], task_id=run.id, headers={HEADER: header})
    wait_until(lambda: workers.refused() > before)
    assert stored(run) == ["STARTED", "PROGRESS"]
    open_gate(gate)
    workers.project.run_when(run.id, "succeeded")


def test_what_is_no_run_is_tracked_as_celery_does(
    workers: Workers, stored: Stored, tmp_path: Path
) -> None:
    with Celery(broker=workers.project.url, backend=workers.project.url) as app:
        sent = app.send_task("team.unsupervised", [str(tmp_path / "proof")])
        assert sent.get(timeout=scaled(20)) is None
        assert stored(sent) == ["STARTED", "SUCCESS"]


def test_a_task_that_ignores_its_results_has_none(workers: Workers, stored: Stored) -> None:
    gate = gate_of(workers)
    run = workers.trigger("ignored", gate)
    wait_until(lambda: workers.project.ledger.run(run.id).progress, 20)
    open_gate(gate)
    ended = workers.project.run_when(run.id, "succeeded")
    assert ended.progress is not None
    assert stored(run) == []
