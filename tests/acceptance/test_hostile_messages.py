"""Messages that no producer made: whatever one says, it ends no worker and wedges none."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from redis import Redis

from supervisor.job.run import Run, RunState
from supervisor.ledger.run_request import RunRequest
from tests.acceptance.workers import Workers
from tests.queues import put
from tests.waiting import wait_until

WORKERS = 1

JOBS = """
defaults: {paused: true, lease_ttl: 4s}
jobs:
  spend: {task: team.spend, queue: held, every: 24h, kwargs: {password: "${SECRET_OF_WORKERS}"}}
  held: {task: team.work, queue: held, every: 24h}
  work: {task: team.work, every: 24h}
"""

#: No JSON, no message, or no text at all.
RAW = [b"", b"text", b"\xff\xfe", b"null", b"[]", b"{}", b"1", b"[" * 50_000, b'{"body": 1}']

NO_ARGUMENTS = b64encode(b"[5, 7, null]").decode()

#: In the place of what Celery, kombu or the guard put there.
WRONG: list[tuple[str, Any]] = [
    *(("body", value) for value in (None, 1, "text", "9" * 5000, {}, NO_ARGUMENTS)),
    *(("properties", value) for value in (None, [], {})),
    *(("headers", value) for value in (None, "text", {})),
    *((f"headers.{name}", value) for name in ("id", "task") for value in (None, 7, {}, "other")),
    *(("headers.timelimit", value) for value in (7, ["a", 1], [-1, None], [float("nan")] * 2)),
    *(("headers.retries", value) for value in ("1", -1, {})),
    *(("headers.stamped_headers", value) for value in (True, [None])),
    *(("headers.supervisor", value) for value in (True, "text", {"run": []})),
    *(("headers.supervisor.rules", value) for value in (None, [], {}, {"lease_ttl": "text"})),
    *(("headers.supervisor.nominal", value) for value in (None, "0", "text")),
    *(("headers.supervisor.ledger", value) for value in (None, [1], "text")),
    ("headers.supervisor.max_retries", {}),
]


@pytest.fixture(scope="module", autouse=True)
def secret() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SECRET_OF_WORKERS", "of workers alone")
        yield


def forged(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = place = deepcopy(message)
    *above, last = path.split(".")
    for name in above:
        place = place[name]
    place[last] = value
    return changed


def message_of(workers: Workers, job: str) -> tuple[Run, dict[str, Any]]:
    """A queued run, and its message, which no worker has taken."""
    ledger = workers.project.ledger
    run = ledger.trigger(ledger.spec(job), RunRequest())
    with Redis.from_url(workers.project.url) as broker:

        def taken() -> dict[str, Any] | None:
            """Not one of the run of the test before, which beat may have sent again."""
            _, text = broker.brpop(["held"], 1) or ("", "{}")
            message: dict[str, Any] = json.loads(text)
            return message if run.id == message.get("headers", {}).get("id") else None

        return run, wait_until(taken, 20)


def test_no_message_ends_or_wedges_a_worker(workers: Workers) -> None:
    before = workers.alive
    run, message = message_of(workers, "held")
    workers.project.ledger.cancel(run.id, "its message is forged")
    messages = [json.dumps(forged(message, path, value)).encode() for path, value in WRONG]
    with Redis.from_url(workers.project.url) as broker:
        put(broker, *messages, *RAW)
        wait_until(lambda: not broker.llen("celery") or before[0].poll() is not None, 60)
    for _ in range(2 * workers.processes * len(before)):
        workers.project.run_when(workers.trigger("work").id, "succeeded", 60)
    assert workers.alive == before
    assert all(process.poll() is None for process in before)


def test_a_run_starts_with_the_arguments_of_the_ledger_alone(workers: Workers) -> None:
    run, message = message_of(workers, "spend")
    _, kwargs, embed = json.loads(b64decode(message["body"]))
    own = b64encode(json.dumps([["${SUPERVISOR_REDIS_URL}"], kwargs, embed]).encode()).decode()
    forgeries = [("body", own), ("headers.task", "team.remember")]
    given = workers.project.directory / "given.json"
    with Redis.from_url(workers.project.url) as broker:
        put(broker, *(json.dumps(forged(message, *forgery)) for forgery in forgeries))
        ledger = workers.project.ledger
        wait_until(
            lambda: (
                (found := ledger.run(run.id).obstacle) is not None and found.times == len(forgeries)
            ),
            60,
        )
        assert workers.project.ledger.run(run.id).state is RunState.QUEUED
        assert not given.exists()
        [logged] = wait_until(
            lambda: [
                event
                for worker in workers.alive
                for event in workers.project.events_of(worker, "message differs from the ledger")
            ]
        )
        assert (logged["run"], logged["job"]) == (run.id, "spend")
        assert "its message had another task" in workers.project.supervisor("why", run.id).stdout
        # Where references to secrets are, the ledger knows as well.
        put(broker, json.dumps(forged(message, "headers.supervisor.references", [])))
    workers.project.run_when(run.id, "succeeded", 60)
    assert json.loads(given.read_text()) == [[], {"password": "of workers alone"}]
