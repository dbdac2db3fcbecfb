"""Records the message that Celery and kombu would push to Redis, in the place of pushing it.

Marks stand where the messages of one run, or of one job, differ; the function that queues a run
puts the run's own there and pushes it (ledger/messages.lua).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from celery import Celery

from supervisor.guard.delivery import HEADER, NOMINAL, RETRIES
from supervisor.job.run import Message
from supervisor.sending.queues import is_on_redis
from supervisor.store.connection import Client

#: Publishes one message with a given producer. Returns the name of its queue.
Publish = Callable[[Any], str]

#: The marks begin with a control character that JSON has in no other place.
MARK = "\x01"
RUN_MARK, TAG_MARK, RETRIES_MARK, NOMINAL_MARK = (MARK + letter for letter in "itrn")


class Recorder:
    """Stands in for the client of kombu's Redis transport: keeps the commands, and sends none."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        return lambda *args, **_: self.commands.append((command, *args))

    def pipeline(self) -> AbstractContextManager[Recorder]:
        return nullcontext(self)


@cache
def recording_class(own: Any) -> Any:
    """A class of channels of kombu's Redis transport that push nothing.

    recorder: gets what would be pushed. run_id: of a message that stands for all runs of a job.
    marks: how many the last message has.
    """

    class RecordingChannel(own):  # type: ignore[misc]
        recorder: Recorder
        run_id: str | None = None
        marks: int

        def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
            message, self.marks = with_marks(message, self.run_id)
            self.conn_or_acquire = lambda client=None: nullcontext(self.recorder)
            try:
                super()._put(queue, message, **options)
            finally:
                del self.conn_or_acquire

        def _put_fanout(self, *_: Any, **__: Any) -> None:
            self.recorder.publish()

    return RecordingChannel


class Recording:
    """Makes messages as Celery and kombu would push them on a channel, one at a time.

    channel: of kombu's Redis transport. Other threads may use its connection meanwhile.
    """

    def __init__(self, app: Celery, channel: Any) -> None:
        own_class: Any = type(channel)
        kind = recording_class(own_class)
        self.channel = channel
        self._own = kind.__new__(kind)
        vars(self._own).update(vars(channel))
        self._producer = app.amqp.Producer(self._own, auto_declare=False)
        self._declare, self._declared = self._producer.maybe_declare, set[str]()
        self._producer.maybe_declare = self._declare_once  # type: ignore[method-assign,assignment]

    def _declare_once(self, entity: Any, *args: Any, **options: Any) -> None:
        """kombu knows what is declared too, but copies the queue of each message to find it."""
        if entity.name not in self._declared:
            self._declare(entity, *args, **options)
            self._declared.add(entity.name)

    def message(self, publish: Publish, run_id: str | None = None) -> Message | None:
        """What would be pushed, with marks as above.

        run_id: of a run that stands for all of a job; without it the message is that of one run,
        and has marks for its delivery tag and the number of retries. Returns None if that would be
        none or more than one push (a task that sends itself later, a queue that expires, an
        exchange of several queues), and for a message that cannot have marks: with that control
        character of its own, or of a job whose messages expire.
        """
        own = self._own
        own.recorder, own.run_id, own.marks = Recorder(), run_id, 0
        queue = publish(self._producer)
        match own.recorder.commands:
            case [("lpush", key, text)] if own.marks and text.count(escaped(MARK)) == own.marks:
                text = unescaped(text)
                if run_id is None or run_id not in text:
                    return Message(queue, own.global_keyprefix + key, text)
        return None


def with_marks(message: dict[str, Any], run_id: str | None) -> tuple[dict[str, Any], int]:
    """The message with marks where others of its run, or of its job, differ; and their number.

    That is 0, and the message as it is, for one of no run, and one that stands for all of a job and
    expires.
    """
    headers, properties = {**message["headers"]}, {**message["properties"]}
    expires = run_id is not None and (headers["expires"] or headers["eta"])
    if HEADER not in headers or expires:
        return message, 0
    ours = headers[HEADER] = {**headers[HEADER], RETRIES: RETRIES_MARK}
    headers["retries"], properties["delivery_tag"] = RETRIES_MARK, TAG_MARK
    headers["expires"] = None  # of a call, the ledger has it
    marks = 3
    if run_id is not None:
        ours[NOMINAL] = NOMINAL_MARK
        marks += 1
        places = (headers, "id"), (headers, "root_id"), (ours, "run")
        for fields, name in (*places, (properties, "correlation_id")):
            if fields.get(name) == run_id:
                fields[name] = RUN_MARK
                marks += 1
    return {**message, "headers": headers, "properties": properties}, marks


def unescaped(text: str) -> str:
    """The marks as the ledger looks for them; some stand for numbers."""
    for mark in (RETRIES_MARK, NOMINAL_MARK):
        text = text.replace(f'"{escaped(mark)}"', mark)
    return text.replace(escaped(MARK), MARK)


@cache
def escaped(mark: str) -> str:
    """As JSON has it, without quotes."""
    return json.dumps(mark)[1:-1]


#: Two connections with the same of these see the same keys with the same rights.
SAME_KEYS = ("host", "port", "path", "db", "username")


def is_beside(channel: Any, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
    if not is_on_redis(channel):
        return False
    ours = connected_to(channel.client.connection_pool)
    return ours is not None and ours == connected_to(ledger.connection_pool)


def connected_to(pool: Any) -> tuple[str, ...] | None:
    """The server of a connection pool; None if the pool looks it up, as with Sentinel."""
    options: Mapping[str, Any] = pool.connection_kwargs
    if not (options.get("host") or options.get("path")):
        return None
    return tuple(str(options.get(key) or "") for key in SAME_KEYS)
