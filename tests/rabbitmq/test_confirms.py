"""Messages with publisher confirms: none is recorded that RabbitMQ has not taken."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from signal import SIGCONT, SIGKILL, SIGSTOP
from threading import Thread
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu import Queue

from supervisor.app import supervise
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.schedule.ticks import Tick
from supervisor.sending.publisher import Publisher
from tests.jobs import job, ticks
from tests.rabbitmq.broker import RabbitMQ, rabbitmq
from tests.waiting import wait_until

JOBS_OF_MANY, TICKS_OF_EACH = 20, 100
MANY = JOBS_OF_MANY * TICKS_OF_EACH


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as broker:
        yield broker


def app_at(url: str, redis_url: str, **conf: Any) -> Celery:
    app = supervise(Celery("proj", broker=url, set_as_current=False), redis_url=redis_url)
    app.conf.update(conf)

    @app.task(shared=False, name="proj.nightly")
    def nightly(*args: Any, **kwargs: Any) -> None: ...

    return app


@pytest.fixture
def publisher(broker: RabbitMQ, redis_url: str, ledger: Ledger) -> Iterator[Publisher]:
    with app_at(broker.url, redis_url) as app:
        yield Publisher(app, ledger)


def queued(ledger: Ledger, spec: JobSpec, number: int) -> list[Tick]:
    admitted = ticks(spec, *range(number))
    ledger.admit(admitted)
    return admitted


def taken(url: str, queue: str) -> list[Any]:
    """The messages of a queue, which they leave."""
    with kombu.Connection(url) as connection:
        channel, found = connection.channel(), []
        while message := channel.basic_get(queue, no_ack=True):
            found.append(message)
        return found


def runs_in(url: str, queue: str) -> list[str]:
    return [message.headers["id"] for message in taken(url, queue)]


def test_a_full_queue_refuses_and_its_runs_are_sent_when_there_is_room(
    broker: RabbitMQ, redis_url: str, ledger: Ledger
) -> None:
    bounds = {"x-max-length": 3, "x-overflow": "reject-publish"}
    name = "full"
    full = [Queue(name, routing_key=name, queue_arguments=bounds)]
    with app_at(broker.url, redis_url, task_queues=full) as app:
        publisher = Publisher(app, ledger)
        ids = queued(ledger, job(ledger, overlap="allow", queue=name), 5)
        assert publisher.publish(ledger.outbox()) == 3
        sent = [run.id for run in ledger.sent_runs(10)]
        assert len(sent) == 3
        assert ledger.outbox() == []  # later
        obstacles = [run.obstacle for run in ledger.runs([tick.run_id for tick in ids])]
        texts = [obstacle.text for obstacle in obstacles if obstacle]
        assert texts == ["its message was not sent: the queue is full"] * 2
        assert sorted(runs_in(broker.url, name)) == sorted(sent)
        wait_until(lambda: publisher.publish(ledger.outbox()) == 2, 20)
        assert {*runs_in(broker.url, name), *sent} == {tick.run_id for tick in ids}


def test_no_message_to_a_deleted_queue_counts_as_sent(
    broker: RabbitMQ, publisher: Publisher, ledger: Ledger
) -> None:
    name = "deleted"
    spec = job(ledger, overlap="allow", queue=name)
    queued(ledger, spec, 1)
    assert publisher.publish(ledger.outbox()) == 1
    with kombu.Connection(broker.url) as connection:
        connection.default_channel.queue_delete(name)
    admitted = ticks(spec, *range(1, 6))
    ledger.admit(admitted)
    assert publisher.publish(ledger.outbox()) == 4  # the queue was declared again for the second
    assert len(ledger.sent_runs(10)) == 5
    assert ledger.outbox() == []  # later

    def all_are_sent() -> bool:
        publisher.publish(ledger.outbox())
        return len(ledger.sent_runs(10)) == 6

    wait_until(all_are_sent, 20)
    assert sorted(runs_in(broker.url, name)) == sorted(tick.run_id for tick in admitted)


def test_a_message_that_is_refused_holds_back_no_other(
    broker: RabbitMQ, redis_url: str, ledger: Ledger
) -> None:
    routes = {"proj.astray": {"exchange": "missing", "routing_key": "astray"}}
    with app_at(broker.url, redis_url, task_routes=routes) as app:
        publisher = Publisher(app, ledger)
        for name in "abcdef":
            task = "proj.astray" if name in "bd" else "proj.nightly"
            queued(ledger, job(ledger, name, task=task, queue=None if name in "bd" else "kept"), 1)
        assert publisher.publish(ledger.outbox()) == 4
    assert {run[0] for run in runs_in(broker.url, "kept")} == {*"acef"}
    sent = {run.id[0] for run in ledger.sent_runs(10)}
    assert sent == {*"acef"}
    assert [ledger.run(f"{name}@2026-03-01T00:00:00Z").state for name in "bd"] == ["queued"] * 2


def test_a_connection_that_was_closed_meanwhile_is_made_again(
    broker: RabbitMQ, publisher: Publisher, ledger: Ledger
) -> None:
    spec = job(ledger, overlap="allow", queue="again")
    for tick in queued(ledger, spec, 3):
        assert publisher.publish([tick.run_id]) == 1
        broker.ctl("close_all_connections", "idle")
    assert ledger.outbox() == []
    assert len(taken(broker.url, "again")) == 3


def test_while_the_broker_hangs_nothing_counts_as_sent(
    broker: RabbitMQ, publisher: Publisher, ledger: Ledger
) -> None:
    spec = job(ledger, overlap="allow", queue="hung")
    queued(ledger, spec, 1)
    assert publisher.publish(ledger.outbox()) == 1
    admitted = ticks(spec, *range(1, 100))
    ledger.admit(admitted)
    os.kill(broker.pid, SIGSTOP)
    try:
        assert publisher.publish(ledger.outbox()) == 0
        assert len(ledger.sent_runs(10_000)) == 1
    finally:
        os.kill(broker.pid, SIGCONT)

    def all_are_sent() -> bool:
        publisher.publish(ledger.outbox())
        return len(ledger.sent_runs(10_000)) == 100

    wait_until(all_are_sent, 30, 1)
    assert {*runs_in(broker.url, "hung")} >= {tick.run_id for tick in admitted}


def test_a_broker_without_memory_keeps_one_connection(
    broker: RabbitMQ, publisher: Publisher, ledger: Ledger
) -> None:
    name = "blocked"
    spec = job(ledger, overlap="allow", queue=name)
    ids = queued(ledger, spec, 100)
    broker.ctl("set_vm_memory_high_watermark", "0.000001")
    try:
        assert [publisher.publish(ledger.outbox()) for _ in range(5)] == [0] * 5
        assert broker.ctl("list_connections", "state").count("blocked") == 1
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.6")
    wait_until(lambda: publisher.publish(ledger.outbox()) == 100, 20)
    counts = Counter(runs_in(broker.url, name))
    assert counts.keys() >= {tick.run_id for tick in ids}
    assert counts.total() <= 101  # the message that was written when it said that it is blocked


def test_of_messages_during_which_the_broker_is_killed_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, ledger: Ledger
) -> None:
    with (
        rabbitmq(tmp_path_factory.mktemp("killed")) as broker,
        app_at(broker.url, redis_url) as app,
    ):
        publisher = Publisher(app, ledger)
        jobs = [job(ledger, f"job-{n}", overlap="allow") for n in range(JOBS_OF_MANY)]
        found = [tick for spec in jobs for tick in queued(ledger, spec, TICKS_OF_EACH)]

        def kill_it() -> None:
            wait_until(lambda: ledger.first_sent_at() is not None, 60, 0.001)
            os.kill(broker.pid, SIGKILL)

        killing = Thread(target=kill_it)
        killing.start()
        assert publisher.publish(ledger.outbox(MANY)) < MANY
        killing.join()
        recorded = {run.id for run in ledger.sent_runs(MANY)}
        assert 0 < len(recorded) < MANY
        with broker.started_again():
            assert recorded <= {*runs_in(broker.url, "celery")}
            while run_ids := ledger.outbox():
                assert recorded.isdisjoint(run_ids)
                publisher.publish(run_ids)
            sent_again = {*runs_in(broker.url, "celery")}
            assert recorded | sent_again == {tick.run_id for tick in found}
