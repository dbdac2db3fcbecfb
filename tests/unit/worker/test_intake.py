"""What stock Celery takes is taken by a worker too: see test_forged_messages for what is not."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from celery.exceptions import InvalidTaskError
from kombu import Connection, Consumer, Queue
from kombu.transport import redis, virtual

from supervisor.worker.intake import check, take_any_message

ID = str(UUID(int=7))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"id": UUID(ID)},
        {"timelimit": [None, 30], "retries": 0},
        {"timelimit": [30.5, False]},
        {"stamped_headers": ["tenant"], "stamps": {"tenant": ["a"]}},
        {"supervisor": {"run": "another@1"}},
        {"supervisor": None},
    ],
    ids=str,
)
def test_what_celery_takes_is_taken(headers: dict[str, Any]) -> None:
    check({"id": ID, **headers})


@pytest.mark.parametrize(
    "headers",
    [{"id": {}}, {"id": 1}, {"timelimit": ["a", 1]}, {"retries": "1"}, {"supervisor": "text"}],
    ids=str,
)
def test_what_would_be_tripped_over_is_not(headers: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskError):
        check({"id": ID, **headers})


def test_a_consumer_of_a_task_hears_of_what_its_callback_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual.Transport, "_deliver", virtual.Transport._deliver)
    monkeypatch.setattr(redis.Channel, "_brpop_read", redis.Channel._brpop_read)
    take_any_message()

    class Found(Exception): ...

    def found(*_: Any) -> None:
        raise Found

    with Connection("memory://") as connection, connection.channel() as channel:
        queue = Queue("of-a-task", channel=channel)
        queue.declare()
        connection.Producer().publish({}, routing_key="of-a-task")
        with Consumer(channel, [queue], callbacks=[found]), pytest.raises(Found):
            connection.drain_events(timeout=1)
