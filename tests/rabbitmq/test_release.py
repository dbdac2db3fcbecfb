"""An app whose messages RabbitMQ brings is given back: runs' messages go, the others stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from redbeat.schedulers import get_redis

from supervisor.app import supervise
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.features.adoption.release import give_back, release_of
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import required_settings
from supervisor.sending.publisher import Publisher
from supervisor.sending.queues import AppQueues
from tests.rabbitmq.broker import rabbitmq
from tests.waiting import wait_until


@pytest.fixture
def app(redis_url: str, tmp_path: Path) -> Iterator[Celery]:
    with (
        rabbitmq(tmp_path) as broker,
        Celery("proj", broker=broker.url, set_as_current=False) as app,
    ):
        yield supervise(app, redis_url=redis_url)
        get_redis(app).close()


def lengths(app: Celery) -> dict[str, int]:
    return AppQueues(app).lengths(["celery", "reports"])


def test_messages_of_runs_go_and_those_of_others_keep_their_order(app: Celery) -> None:
    ledger = Ledger.open(required_settings(app))
    jobs = {
        name: JobSpec(name=name, task="proj.task", every="1h", overlap="allow", queue=queue)
        for name, queue in (("job", None), ("report", "reports"))
    }
    load(ledger, Entries(app, ledger), jobs, "digest", ledger.now())
    for number in range(3):
        app.send_task("proj.other", (number,), serializer="yaml" if number else "json")
        for spec in jobs.values():
            ledger.trigger(spec)
        Publisher(app, ledger).publish(ledger.outbox())
    wait_until(lambda: lengths(app) == {"celery": 6, "reports": 3})
    assert give_back(app, ledger, release_of(app, ledger, with_entries=False)) == 6
    wait_until(lambda: lengths(app) == {"celery": 3, "reports": 0})
    with app.connection_for_read() as connection:
        queue = app.amqp.queues["celery"].bind(connection.default_channel)
        left = [queue.get(no_ack=True, accept=["json", "yaml"]) for _ in range(3)]
    assert [message.decode()[0] for message in left] == [[0], [1], [2]]
    ledger.close()
