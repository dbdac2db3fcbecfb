"""What Celery and kombu would push for a run, asked of them without pushing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Celery

from supervisor.execution.assignments import Assignment
from supervisor.ledger.connection import Client

#: What two connections have in common that see the same keys with the same rights.
PLACE = ("host", "port", "path", "db", "username")

#: Publishes with a given producer, as everything is published.
Send = Callable[[Any, Assignment], str]


@dataclass(frozen=True, slots=True)
class Push:
    """One message of kombu's Redis transport, and the key of the list it is pushed to."""

    key: str
    text: str


class Recorder:
    """A channel of that transport which keeps the commands that a message becomes."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.commands: list[tuple[str, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def basic_publish(self, message: Any, **options: Any) -> Any:
        return self._channel.basic_publish(message, _publish_batch=self, **options)

    def add(self, *command: str) -> None:
        """What kombu calls of a batch, in place of sending the command."""
        self.commands.append(command)


def recorded(app: Celery, send: Send, assignment: Assignment) -> Push | None:
    """None for what is more than one push: a queue that expires, an exchange of several queues."""
    with app.producer_or_acquire() as producer:
        recorder: Any = Recorder(producer.channel)
        send(app.amqp.Producer(recorder, auto_declare=False), assignment)
    match recorder.commands:
        case [("lpush", key, text)]:
            return Push(recorder.global_keyprefix + key, text)
        case _:
            return None


def queues_are_beside(app: Celery, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
    with app.producer_or_acquire() as producer:
        channel = producer.channel
        if not hasattr(channel, "priority_steps"):
            return False
        place = place_of(channel.client.connection_pool)
    return place is not None and place == place_of(ledger.connection_pool)


def place_of(pool: Any) -> tuple[str, ...] | None:
    """None for one that looks its server up, as with Sentinel."""
    known = pool.connection_kwargs
    if not (known.get("host") or known.get("path")):
        return None
    return tuple(str(known.get(key) or "") for key in PLACE)
