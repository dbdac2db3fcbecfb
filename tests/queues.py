"""Messages in the broker's queues, as other programs put and take them."""

from __future__ import annotations

import json
from typing import Any

from redis import Redis

#: Celery's own default.
QUEUE = "celery"


def put(client: Redis, *messages: str | bytes, queue: str = QUEUE) -> None:
    client.lpush(queue, *messages)


def taken(client: Redis, queue: str = QUEUE) -> Any:
    """As a worker does, which does nothing with it yet; None if there is none."""
    text = client.rpop(queue)
    return text and json.loads(text)


def take_all(client: Redis, queue: str = QUEUE) -> None:
    client.delete(queue)
