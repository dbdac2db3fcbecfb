"""What a worker does with the messages it holds when its connection to the broker is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from kombu.transport import redis

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.guard.delivery import HEADER
from supervisor.worker.run_qos import RunQoS
from tests.waiting import scaled


@pytest.mark.parametrize("headers", [{}, {"id": "a run", HEADER: {"run": "a run"}}])
@pytest.mark.parametrize("collected", [False, True])
def test_a_channel_with_messages_closes_without_its_server(
    collected: bool, headers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis.Channel, "QoS", RunQoS)
    with EmbeddedServer(tmp_path / "valkey") as server, Connection(server.url) as connection:
        received: list[Any] = []
        queue = connection.SimpleQueue("work")
        queue.put("one", headers=headers)
        queue.put("two", headers=headers)
        channel = connection.default_channel
        callbacks = [lambda _, message: received.append(message)]
        Consumer(channel, [Queue("work")], callbacks=callbacks).consume()
        while len(received) < 2:
            connection.drain_events(timeout=scaled(10))
        assert len(channel.qos._delivered) == 2
        server.kill()
        if collected:  # as Celery leaves it where an error cut the first attempt short
            channel.connection.client = None
        channel.close()
        assert not channel.qos._delivered
        # Their tasks end only now; an error here ends the worker.
        received[0].ack()
        received[1].reject(requeue=True)
