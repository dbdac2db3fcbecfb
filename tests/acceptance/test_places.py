"""Places of a worker's pool: what fails gives its own back, and what waits in the main process has
none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run, RunState
from tests.acceptance.project import Project
from tests.acceptance.workers import Workers
from tests.conftest import DATABASES, database, emptied
from tests.queues import put, taken
from tests.waiting import wait_until
from tests.written import json_lines

JOBS = """
defaults: {paused: true, lease_ttl: 4s}
jobs:
  work: {task: team.work, every: 24h}
  limited: {task: team.limited, every: 24h, overlap: allow, kwargs: {who: job}}
  batched: {task: team.batched, every: 24h}
  apart: {task: team.plain, every: 24h, queue: apart, overlap: allow}
  beats-own: {task: team.beats_own, every: 24h}
"""

SETTINGS = """
from celery.worker.request import create_request_cls

class Breaking(Request):
    "Fails where its message says, for the first time in __init__."

    def __init__(self, message, **options):
        self.point = (message.headers.get("shadow") or "").partition(" ")[2]
        self.fail("init")
        super().__init__(message, **options)

    def fail(self, point):
        if self.point == point:
            raise LookupError(point)

    def revoked(self):
        self.fail("revoked")
        return super().revoked()

    @property
    def request_dict(self):
        "What the pool cannot pickle."
        return {"lambda": lambda: None} if self.point == "pickle" else super().request_dict

    def on_accepted(self, *args):
        super().on_accepted(*args)
        self.fail("accepted")

    def on_success(self, *args, **options):
        super().on_success(*args, **options)
        self.fail("success")

    def on_failure(self, *args, **options):
        super().on_failure(*args, **options)
        self.fail("failure")


def broken(self, fails=False):
    if fails:
        raise ValueError("of the task's own")

plain = app.task(broken, name="team.plain", bind=True, Request=Breaking)
spaced = app.task(broken, name="team.spaced", bind=True, Request=Breaking, rate_limit="100/s")


if "worker" not in sys.argv:

    @app.task
    def beats_own():
        pass


@app.task(rate_limit="1/m")
def limited(who):
    with WITNESS.with_name("limited.jsonl").open("a") as done:
        done.write(json.dumps({"by": who}) + "\\n")


def write_batch(ids):
    with WITNESS.with_name("batches.jsonl").open("a") as batches:
        batches.write(json.dumps({"ids": ids}) + "\\n")


def by_three(task, app, consumer):
    "Keeps three messages in the main process, and gives them to the pool together."
    kept = []
    own = create_request_cls(Request, task, consumer.pool, consumer.hostname, None, app=app)

    def keep(message, body, ack, reject, callbacks, **options):
        kept.append(own(message, on_ack=ack, on_reject=reject, app=app, task=task))
        if len(kept) == 3:
            consumer.pool.apply_async(write_batch, ([each.id for each in kept],))
            for each in kept:
                each.acknowledge()
            kept.clear()

    return keep


@app.task
def batched():
    pass

if "worker" in sys.argv:  # beat, which would not load the job, has older code
    batched.Strategy = staticmethod(by_three)
"""

#: One after the other may fail, and the worker is as it was.
POINTS = ("init", "revoked", "pickle", "accepted", "success", "failure")


@pytest.fixture(scope="module", params=["prefork", "threads"])
def shared_workers(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Workers:
    project = Project(tmp_path_factory.mktemp(request.param), database(server.url, DATABASES))
    emptied(project.url)
    project.extend(SETTINGS)
    project.schedule(JOBS)
    request.addfinalizer(project.stop)
    project.beat()
    project.wait_for_jobs()
    return Workers(project, ("-P", request.param), size=1)


def send(workers: Workers, text: str) -> None:
    """Messages of the team's own code."""
    workers.project.code(f"{text}\nprint(1)")


def works(workers: Workers) -> bool:
    return bool(workers.project.run_when(workers.trigger("work").id, "succeeded", 20))


@pytest.mark.parametrize("point", POINTS)
def test_a_message_that_fails_gives_its_place_back(workers: Workers, point: str) -> None:
    """Where a message gives its task to the pool, a timer or a rate limit's bucket does."""
    before = workers.alive
    call = f'apply_async([{point == "failure"}], shadow="a {point}", countdown=later)'
    lines = [
        f"for later in [None, 0.1] * {workers.processes}:",
        f"    for task in (team.plain, team.spaced): task.{call}",
    ]
    send(workers, "\n".join(lines))
    assert works(workers)
    assert workers.alive == before


def test_a_body_too_deep_for_the_pool_gives_its_place_back(workers: Workers) -> None:
    before = workers.alive
    with Redis.from_url(workers.project.url) as broker:
        for depth in range(300, 1000, 50):
            body = f"[[{'[' * depth}{']' * depth}], {{}}, {{}}]"
            message = {
                "body": body,
                "headers": {"task": "team.plain", "id": str(depth), "lang": "py"},
                "content-type": "application/json",
                "content-encoding": "utf-8",
                "properties": {
                    "delivery_tag": str(depth),
                    "delivery_info": {"exchange": "", "routing_key": "celery"},
                },
            }
            put(broker, json.dumps(message))
    assert works(workers)
    assert workers.alive == before


def test_what_waits_for_a_rate_limit_has_no_place(workers: Workers) -> None:
    runs = [workers.trigger("limited") for _ in range(workers.processes + 1)]
    send(workers, "team.limited.delay('call')")
    assert works(workers)
    assert len(json_lines(workers.project.directory / "limited.jsonl")) == 1
    waiting = [run for run in map(run_now(workers), runs) if run.state is RunState.QUEUED]
    assert waiting
    for run in waiting:
        assert run.obstacle
        assert "waits in the worker for the rate limit, 1/m" in run.obstacle.text
    for run in runs:
        workers.project.ledger.cancel(run.id, "the test is over")


def run_now(workers: Workers) -> Callable[[Run], Run]:
    return lambda run: workers.project.ledger.run(run.id)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"timelimit": ["soon", 1]}, "its message is not valid: the time limits are not two"),
        ({"shadow": "a init"}, "the worker failed on its message: LookupError('init')"),
    ],
)
def test_a_run_says_that_its_message_was_refused(
    workers: Workers, headers: dict[str, Any], said: str
) -> None:
    run = workers.trigger("apart")
    with Redis.from_url(workers.project.url) as broker:
        message = wait_until(lambda: taken(broker, "apart"))
        message["headers"] |= headers
        put(broker, json.dumps(message))
    obstacle = wait_until(lambda: run_now(workers)(run).obstacle)
    assert said in obstacle.text
    workers.project.ledger.cancel(run.id, "the test is over")


def test_a_run_says_that_a_worker_does_not_know_its_task(workers: Workers) -> None:
    run = workers.trigger("beats-own")
    obstacle = wait_until(lambda: run_now(workers)(run).obstacle)
    assert obstacle.text == "the worker does not know the task team.beats_own"
    workers.project.ledger.cancel(run.id, "the test is over")


def test_a_strategy_of_a_tasks_own_gets_its_messages_as_ever(workers: Workers) -> None:
    before = workers.alive
    refused = workers.trigger("batched")
    send(workers, "for number in range(4): team.batched.apply_async(task_id=str(number))")
    assert works(workers)
    [batch] = wait_until(lambda: json_lines(workers.project.directory / "batches.jsonl"))
    assert batch["ids"] == ["0", "1", "2"]
    assert workers.project.ledger.run(refused.id).state is RunState.QUEUED
    [logged] = [
        event
        for worker in workers.alive
        for event in workers.project.events_of(worker, "run refused")
    ]
    assert (logged["job"], logged["needs"]) == ("batched", "a task without a Strategy of its own")
    assert workers.alive == before
