"""Messages on their way to a broker, hundreds at a time, and which of them it has taken.

To RabbitMQ, with publisher confirms:

1. A channel of our own, on the app's connection, is in confirm mode: RabbitMQ numbers what is
   published on it, and confirms each message once it is safe, which means on disk for a persistent
   message in a durable queue.
2. The messages of a batch are written one after another, without a reply in between. What has been
   confirmed by the time that a portion is written is recorded while RabbitMQ is at that portion.
3. At the end of the batch all confirms are waited for, as long as more of them come.
4. Only a run whose messages were all confirmed counts as taken. One that RabbitMQ refused, because
   a queue is full, or whose confirm was lost with the connection, is sent again. If RabbitMQ had
   taken it after all, the guard drops the second message.
5. The messages of runs are mandatory: one that goes to no queue is returned before it is confirmed,
   and counts as refused. Its queue was deleted, and is declared again before the next attempt.
6. RabbitMQ that is out of memory or disk space takes nothing, and says so on each connection on
   which something is published. Such a connection is kept until RabbitMQ takes messages again: if
   each attempt made another, RabbitMQ would keep all of them, with the messages written on each. On
   a new connection the first message is confirmed before the second is written.

To another Redis than the ledger's a batch is one pipeline, taken when Redis says so. Any other
transport is given one message after another, and has taken those that raised no error.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

import amqp
from amqp import spec
from celery import Celery
from kombu.common import maybe_declare
from kombu.exceptions import OperationalError
from kombu.transport import pyamqp

from supervisor.guard.delivery import HEADER
from supervisor.ledger.requests import Message
from supervisor.sending.queues import SENDING_PATIENCE_SECONDS, is_on_redis

#: With more unconfirmed messages than this, confirms are waited for before more are written.
MOST_UNCONFIRMED = 1_000


class BrokerBlocked(OperationalError):
    """RabbitMQ takes no messages for now. What was written on the connection is taken later."""


class PreparedMessage(amqp.Message):
    """A message for the default exchange, with properties that were serialized before."""

    def __init__(self, queue: str, body: bytes, properties: bytes) -> None:
        super().__init__(body)
        self.queue = queue
        self._prepared = properties

    def _serialize_properties(self) -> bytes:
        return self._prepared


class ConfirmingChannel(pyamqp.Channel):
    """Knows which of its messages RabbitMQ has not confirmed, by the number of each."""

    basic_publish: Any
    events: dict[str, set[Any]]

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        # With `confirm_publish` py-amqp has put one here that waits for each message.
        self.basic_publish = self._publish
        self.published = 0
        self.unconfirmed: set[int] = set()
        self.refused: set[int] = set()
        self.returned: set[str] = set()  # ids of runs
        self._first_unconfirmed = 1  # or an earlier one
        self.events["basic_ack"].add(self._confirm)
        self.events["basic_nack"].add(self._refuse)
        self.events["basic_return"].add(self._return)
        self.is_blocked = False
        connection.on_blocked, connection.on_unblocked = self._block, self._unblock

    def raise_if_blocked(self) -> None:
        if self.is_blocked:
            raise BrokerBlocked("RabbitMQ takes no messages: it is out of memory or disk space")

    @classmethod
    def on(cls, connection: Any) -> ConfirmingChannel:
        """The connection's one channel of this class, which is opened for the first batch."""
        for channel in connection.channels.values():
            if isinstance(channel, cls):
                return channel
        channel = cls(connection)
        channel.open()
        channel.confirm_select()
        return channel

    def write(self, message: PreparedMessage) -> None:
        arguments = (0, "", message.queue, True, False)
        self.send_method(spec.Basic.Publish, "Bssbb", arguments, message)
        self._number()

    def wait_for_confirms(self, most_left: int = 0) -> None:
        """Raises TimeoutError when none has come for some seconds."""
        while len(self.unconfirmed) > most_left:
            missing, until = len(self.unconfirmed), time.monotonic() + SENDING_PATIENCE_SECONDS
            while len(self.unconfirmed) == missing:
                self.raise_if_blocked()
                if self.connection is None:
                    raise OperationalError("the connection was closed before all was confirmed")
                seconds_left = max(until - time.monotonic(), 0.001)
                self.connection.drain_events(timeout=seconds_left)

    def _publish(self, message: Any, *args: Any, **options: Any) -> Any:
        if HEADER in (message.headers or ()):  # and not an event, which may interest no one
            options["mandatory"] = True
        done = super().basic_publish(message, *args, **options)
        self._number()
        return done

    def _number(self) -> None:
        self.published += 1
        self.unconfirmed.add(self.published)
        if self.published == 1:
            self.wait_for_confirms()

    def _block(self, _reason: str) -> None:
        self.is_blocked = True

    def _unblock(self) -> None:
        self.is_blocked = False

    def _confirm(self, number: int, is_multiple: bool) -> None:
        self.unconfirmed -= self._meant(number, is_multiple)

    def _refuse(self, number: int, is_multiple: bool) -> None:
        meant = self._meant(number, is_multiple)
        self.refused |= meant
        self.unconfirmed -= meant

    def _return(self, _error: Any, _exchange: str, _queue: str, message: Any) -> None:
        """A message found no queue, so the queues are declared again."""
        self.returned.add(str(message.headers["id"]))
        self.connection.client.declared_entities.clear()

    def _meant(self, number: int, is_multiple: bool) -> set[int]:
        if not is_multiple:
            return {number}
        first, self._first_unconfirmed = self._first_unconfirmed, number + 1
        return self.unconfirmed.intersection(range(first, number + 1))


class Batch:
    """Runs whose messages were sent with `producer`, and what became of them.

    taken: their queues by their ids, for good once the batch has ended, whether it failed or not.
    refused: ids of those that may be sent again later.
    """

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.taken: dict[str, str] = {}
        self.refused: list[str] = []
        self._given = 0

    def newly_taken(self) -> dict[str, str]:
        """The part of `taken` that was not returned before."""
        before, self._given = self._given, len(self.taken)
        return dict(islice(self.taken.items(), before, None))

    def add(self, run_id: str, queue: str) -> None:
        """The messages of a run were sent since those of the run before it."""
        self.taken[run_id] = queue

    def push(self, messages: Mapping[str, Any]) -> None:
        """Sends messages that were prebuilt for this transport, by the ids of their runs.

        When this returns, some of them may have been taken, and more of the earlier ones.
        """
        raise NotImplementedError


class PipelineBatch(Batch):
    """A batch on Redis. If it fails, it is not known what was taken."""

    def push(self, messages: Mapping[str, Message]) -> None:
        channel, lists = self.producer.channel, defaultdict[str, dict[str, Message]](dict)
        for run_id, message in messages.items():
            lists[message.key][run_id] = message
        with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for key, own in lists.items():
                # The client puts the app's prefix before each key.
                texts = (message.text for message in own.values())
                pipe.lpush(key.removeprefix(channel.global_keyprefix), *texts)
            replies = pipe.execute(raise_on_error=False)
        for own, reply in zip(lists.values(), replies, strict=True):
            if not isinstance(reply, Exception):
                for run_id, message in own.items():
                    self.add(run_id, message.queue)


class ConfirmedBatch(Batch):
    """A batch on RabbitMQ."""

    def __init__(self, app: Celery, channel: ConfirmingChannel) -> None:
        super().__init__(app.amqp.Producer(channel, auto_declare=False))
        self._app = app
        self._channel = channel
        self._sent: dict[str, tuple[str, range]] = {}
        self._numbered = channel.published
        channel.refused.clear()
        channel.returned.clear()

    def add(self, run_id: str, queue: str) -> None:
        before, self._numbered = self._numbered, self._channel.published
        self._sent[run_id] = queue, range(before + 1, self._numbered + 1)

    def push(self, messages: Mapping[str, PreparedMessage]) -> None:
        for queue in {message.queue for message in messages.values()}:
            maybe_declare(self._app.amqp.queues[queue], self._channel)
        for run_id, message in messages.items():
            self._channel.write(message)
            self.add(run_id, message.queue)
        self._channel.wait_for_confirms(MOST_UNCONFIRMED)
        self.settle()

    def settle(self) -> None:
        """Sorts the runs whose messages RabbitMQ has all answered into taken and refused."""
        channel, waiting = self._channel, {}
        for run_id, (queue, numbers) in self._sent.items():
            if not channel.unconfirmed.isdisjoint(numbers):
                waiting[run_id] = queue, numbers
            elif run_id in channel.returned or not channel.refused.isdisjoint(numbers):
                self.refused.append(run_id)
            else:
                self.taken[run_id] = queue
        self._sent = waiting


def is_amqp(channel: Any) -> bool:
    return isinstance(channel, pyamqp.Channel)


def is_alive(connection: Any) -> bool:
    """Whether RabbitMQ has kept a connection of py-amqp. One that is idle is closed in minutes."""
    try:
        while True:
            connection.drain_events(timeout=0)
    except TimeoutError:  # nothing more was said
        return True
    except (OSError, amqp.exceptions.AMQPError):
        connection.collect()
        return False


@contextmanager
def batch_on(app: Celery, producer: Any) -> Iterator[Batch]:
    """Ends when the broker has taken the messages, or has said of each that it has not.

    Raises OperationalError and OSError if it is unavailable, and ChannelError of py-amqp when
    RabbitMQ could not make sense of a message, and so dropped those behind it.
    """
    channel = producer.channel
    if is_amqp(channel) and not is_alive(channel.connection):
        producer.revive(producer.connection)
        channel = producer.channel
    if is_amqp(channel):
        with confirmed_batch(app, producer.connection, channel.connection) as confirmed:
            yield confirmed
        return
    batch = PipelineBatch(producer) if is_on_redis(channel) else Batch(producer)
    try:
        with getattr(producer, "batch", nullcontext)():  # since kombu 5.7
            yield batch
    except BaseException:
        if getattr(producer, "supports_batch_publish", False):
            batch.taken.clear()
        raise


@contextmanager
def confirmed_batch(app: Celery, broker: Any, connection: Any) -> Iterator[ConfirmedBatch]:
    """connection: of py-amqp, which `broker` of kombu has."""
    try:
        channel = ConfirmingChannel.on(connection)
        channel.raise_if_blocked()
        batch = ConfirmedBatch(app, channel)
        try:
            yield batch
            channel.wait_for_confirms()
        finally:
            batch.settle()
    except BrokerBlocked:
        raise
    except BaseException as error:
        # What comes on this connection now would be taken for what comes later.
        connection.collect()
        if isinstance(error, broker.connection_errors):
            raise OperationalError(str(error)) from error
        raise
