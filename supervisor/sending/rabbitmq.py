"""What RabbitMQ says of messages beside confirming them.

Messages of runs are published one by one, with confirms (`confirm_publish`) and as `mandatory`:

1. A message that goes to no queue, because its queue was deleted, is returned before it is
   confirmed. Its queue is declared again before the next attempt.
2. RabbitMQ that is out of memory or disk space says so on each connection on which something is
   published, and confirms nothing until that is over. Such a connection is kept: if each attempt
   made another, RabbitMQ would keep all of them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError
from kombu.transport import pyamqp


class BrokerBlocked(OperationalError):
    """RabbitMQ takes no messages for now. What was written on the connection is taken later."""


class Listener:
    """What was said on one connection of py-amqp, whose channels it listens to."""

    def __init__(self, connection: Any) -> None:
        self.is_blocked = False
        #: What was published before a block is confirmed after it, which must not be taken for what
        #: is published then: that needs another channel.
        self.needs_channel = False
        self._has_returned = False
        self._declared = connection.client.declared_entities
        connection.on_blocked, connection.on_unblocked = self._block, self._unblock

    def has_returned(self) -> bool:
        """Whether a message was returned since this was last asked."""
        has_returned, self._has_returned = self._has_returned, False
        return has_returned

    def on_return(self, *_: Any) -> None:
        self._has_returned = True
        self._declared.clear()

    def _block(self, _reason: str) -> None:
        self.is_blocked = self.needs_channel = True

    def _unblock(self) -> None:
        self.is_blocked = False


_listeners: WeakKeyDictionary[Any, Listener] = WeakKeyDictionary()


def listener_of(producer: Any) -> Listener | None:
    """Of the producer's connection, which is made again if RabbitMQ has closed it meanwhile.

    None for another transport than py-amqp. Raises BrokerBlocked while RabbitMQ takes no messages,
    and OperationalError or OSError if it cannot be reached.
    """
    channel: Any = producer.channel
    if not isinstance(channel, pyamqp.Channel):
        return None
    if not is_alive(channel.connection):
        producer.revive(producer.connection)
    connection = producer.channel.connection
    listener = _listeners.get(connection)
    if listener is None:
        listener = _listeners[connection] = Listener(connection)
    if listener.is_blocked:
        raise BrokerBlocked("RabbitMQ takes no messages: it is out of memory or disk space")
    if listener.needs_channel:
        try:
            producer.revive(producer.connection.channel())
        except AMQPError as error:
            raise OperationalError(str(error)) from error
        listener.needs_channel = False
    producer.channel.events["basic_return"].add(listener.on_return)
    return listener


def is_alive(connection: Any) -> bool:
    """Whether RabbitMQ has kept a connection. What it has said there is heard on the way."""
    try:
        while True:
            connection.drain_events(timeout=0)
    except TimeoutError:  # nothing more was said
        return True
    except (OSError, AMQPError):
        connection.collect()
        return False
