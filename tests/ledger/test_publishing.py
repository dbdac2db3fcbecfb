"""What becomes of a queued run when its message cannot be sent."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from kombu import Exchange, Queue

from supervisor.app import supervise
from supervisor.guard.delivery import HEADER, RETRIES
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Refusal, Refused
from supervisor.sending import signing
from supervisor.sending.publisher import Publisher
from supervisor.sending.queues import AppQueues
from supervisor.sending.signing import SIGNATURE, Signer
from supervisor.worker.adopting import adopt
from tests.ledger.jobs import admitted, begin, job, run_id, ticks
from tests.proxy import Proxy, proxy_to
from tests.waiting import patience, wait_until

#: The time-outs of a call, of connecting and of what a new connection says first.
PATIENCE = 15


@pytest.fixture
def broker(redis_url: str) -> Iterator[Proxy]:
    with proxy_to(redis_url) as proxy:
        yield proxy


def app_at(broker_url: str, redis_url: str, **conf: Any) -> Celery:
    app = Celery("proj", broker=broker_url, set_as_current=False)
    supervise(app, redis_url=redis_url)
    app.conf.update(conf)
    return app


def queued(ledger: Ledger, second: int) -> str:
    spec = job(ledger, overlap="allow")
    ledger.admit(ticks(spec, second))
    return run_id(spec, second)


@pytest.mark.parametrize("was_connected", [True, False])
def test_a_broker_that_hangs_holds_nobody_up_for_ever(
    ledger: Ledger, redis_url: str, broker: Proxy, was_connected: bool
) -> None:
    publisher = Publisher(app_at(broker.url, redis_url), ledger)
    if was_connected:
        assert publisher.publish([queued(ledger, 0)]) == 1
    broker.freeze()
    run, asked_at = queued(ledger, 1), time.monotonic()
    assert publisher.publish([run]) == 0
    assert time.monotonic() - asked_at < patience(PATIENCE)
    assert ledger.run(run).state is RunState.QUEUED
    assert run in ledger.outbox()
    broker.thaw()
    assert publisher.publish([run]) == 1


def test_a_broker_that_is_gone_holds_nobody_up_for_ever(ledger: Ledger, redis_url: str) -> None:
    publisher = Publisher(app_at("redis://127.0.0.1:1/0", redis_url), ledger)
    run, asked_at = queued(ledger, 0), time.monotonic()
    assert publisher.publish([run]) == 0
    assert time.monotonic() - asked_at < patience(PATIENCE)
    assert run in ledger.outbox()


def test_a_run_is_not_given_up_for_results_that_cannot_be_listened_for(
    ledger: Ledger, redis_url: str
) -> None:
    app = app_at(
        redis_url,
        redis_url,
        result_backend="redis://127.0.0.1:1/0",
        result_backend_transport_options={"retry_policy": {"max_retries": 0}},
    )
    run = queued(ledger, 0)
    assert Publisher(app, ledger).publish([run]) == 0
    assert ledger.run(run).state is RunState.QUEUED
    assert run in ledger.outbox()


@pytest.mark.parametrize(
    ("route", "queue"),
    [
        ({"priority": 5}, "celery"),
        ({"routing_key": "anything"}, "celery"),
        ({"queue": "mail"}, "mail"),
        ({"exchange": "news", "routing_key": "sport"}, "sport"),
    ],
)
def test_a_run_is_known_to_be_in_the_queue_that_a_route_leads_to(
    ledger: Ledger, redis_url: str, route: dict[str, Any], queue: str
) -> None:
    app = app_at(redis_url, redis_url, task_routes={"proj.nightly": route})
    news = Exchange("news")
    app.conf.task_queues = [Queue("celery"), Queue("mail")] + [
        Queue(key, news, routing_key=key) for key in ("politics", "sport")
    ]
    with app.connection_for_write() as connection:  # as a worker does
        for each in app.amqp.queues.values():
            each(connection.default_channel).declare()
    run = queued(ledger, 0)
    assert Publisher(app, ledger).publish([run]) == 1
    assert ledger.run(run).queue == queue
    assert AppQueues(app).lengths([queue]) == {queue: 1}


@pytest.mark.parametrize("is_of_an_older_version", [False, True])
def test_a_message_of_before_a_retry_begins_no_attempt_after_it(
    ledger: Ledger, redis_url: str, is_of_an_older_version: bool
) -> None:
    """Sent twice, say; the retry gave the run other arguments."""
    app = app_at(redis_url, redis_url)
    bodies: list[int] = []

    @app.task(name="proj.nightly", bind=True, shared=False)
    def nightly(self: Any, number: int = 1) -> None:
        bodies.append(number)
        if number == 1:
            raise self.retry(args=[2], countdown=0)

    adopt(app.tasks["proj.nightly"])
    run, publisher = queued(ledger, 0), Publisher(app, ledger)

    def delivered() -> dict[str, Any]:
        publisher.publish([run])
        message: dict[str, Any] = json.loads(ledger.client.rpop("celery"))
        if is_of_an_older_version:
            header = message["headers"][HEADER]
            del header[RETRIES]
            [args, kwargs, _] = json.loads(b64decode(message["body"]))
            own = publisher.signer.signature_of("proj.nightly", args, kwargs, header)
            header[SIGNATURE] = own
        return message

    def work_off(message: dict[str, Any]) -> None:
        args, kwargs, _ = json.loads(b64decode(message["body"]))
        request = {**message["headers"], "headers": message["headers"]}
        build_tracer("proj.nightly", nightly, app=app)(run, args, kwargs, request)

    first = delivered()
    work_off(first)
    wait_until(ledger.rescue)
    second = delivered()
    work_off(first)
    work_off(second)
    # Nothing is known of one without the number: it begins as it always did.
    assert bodies == ([1, 1] if is_of_an_older_version else [1, 2])
    assert ledger.run(run).duplicates == 1


def test_a_run_that_two_processes_publish_begins_once(
    ledger: Ledger, redis_url: str, broker: Proxy
) -> None:
    """A worker waits for its broker's answer for longer than beat leaves the run to it."""
    worker = Publisher(app_at(broker.url, redis_url), ledger)
    worker.publish([queued(ledger, 0)])
    spec = admitted(ledger, 0, 1, name="handed-over", overlap="queue_one")
    begin(ledger, run_id(spec, 0))
    [run] = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED).next_up
    ledger.client.delete("celery")
    broker.hold_replies()
    publishing = Thread(target=worker.publish, args=[[run]])
    publishing.start()
    wait_until(lambda: run in ledger.outbox())
    assert Publisher(app_at(redis_url, redis_url), ledger).publish([run]) == 1
    publishing.join(patience(PATIENCE))
    headers = [json.loads(text)["headers"] for text in ledger.client.lrange("celery", 0, -1)]
    assert [header["id"] for header in headers] == [run, run]
    begin(ledger, run, "first")
    retries = headers[1][HEADER][RETRIES]
    second = ledger.begin(run, "second", "worker", "celery", retries)
    assert second == Refused(run, Refusal.DUPLICATE, "running")
    ledger.retry(run, "first", timedelta())
    wait_until(ledger.rescue)
    late = ledger.begin(run, "third", "worker", "celery", retries)
    assert late == Refused(run, Refusal.DUPLICATE, "queued")


def test_a_signing_key_that_was_lost_is_one_for_all_processes_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = {"run": "nightly@1", "nominal_at": "2026-03-01T00:00:00+00:00"}
    message = ("proj.work", [1], {})
    beat, worker = Signer(ledger.client, ledger.keys), Signer(ledger.client, ledger.keys)
    beat.signature_of(*message, header)
    ledger.client.hdel(ledger.keys.server, signing.FIELD)
    assert not worker.has_signed(*message, header)  # it has made another key
    signed = {**header, signing.SIGNATURE: worker.signature_of(*message, header)}
    monkeypatch.setattr(signing, "KEPT_SECONDS", 0)
    assert beat.has_signed(*message, signed)
    ledger.client.hdel(ledger.keys.server, signing.FIELD)
    signed = {**header, signing.SIGNATURE: beat.signature_of(*message, header)}
    assert Signer(ledger.client, ledger.keys).has_signed(*message, signed)
