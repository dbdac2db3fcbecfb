"""What Celery and kombu would push for a run, asked of them without pushing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, Task, signals
from celery.app.routes import MapRoute

from supervisor.app import GUARDED_TASK
from supervisor.execution.assignments import Assignment
from supervisor.ledger.connection import Client
from supervisor.ledger.requests import Message

#: What two connections have in common that see the same keys with the same rights.
PLACE = ("host", "port", "path", "db", "username")


def name_of(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"


#: Who listens to one of them is told of each message, and may change it.
LISTENED_TO = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)

#: What a task's class may say of how it is sent, and the classes that are known to say it.
SENDING = ("apply_async", "shadow_name")
KNOWN_CLASSES = (GUARDED_TASK, name_of(Task))

#: Publishes with a given producer, as everything is published.
Send = Callable[[Any, Assignment], str]


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


def recorded(app: Celery, channel: Any, send: Send, assignment: Assignment) -> Message | None:
    """None for what is more than one push: a queue that expires, an exchange of several queues."""
    recorder: Any = Recorder(channel)
    queue = send(app.amqp.Producer(recorder, auto_declare=False), assignment)
    match recorder.commands:
        case [("lpush", key, text)]:
            return Message(queue, recorder.global_keyprefix + key, text)
        case _:
            return None


def is_ordinary(app: Celery, name: str) -> bool:
    """Whether Celery alone decides how a task is sent, and nobody is told of it."""
    classes = type(app.tasks.get(name)).__mro__
    own = [c for c in classes if vars(c).keys() & {*SENDING} and name_of(c) not in KNOWN_CLASSES]
    return (
        not own
        and type(app).send_task is Celery.send_task
        and not is_listened_to()
        and not app.conf.task_send_sent_event
        and all(isinstance(route, MapRoute) for route in app.amqp.routes)
    )


def is_listened_to() -> bool:
    return any(signal.receivers for signal in LISTENED_TO)


def is_beside(channel: Any, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
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
