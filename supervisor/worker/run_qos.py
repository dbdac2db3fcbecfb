"""Keeps no copy of the messages of runs at the broker.

Redis has no acknowledgements, so kombu keeps a copy of each message until it is acknowledged: two
transactions a message, and a second delivery of whatever takes longer than the visibility timeout.
A run's message names its run and nothing more. One that vanishes with its worker is sent again
within seconds (beat/vanished_messages.py), one that comes twice is refused, and so the copy is of
no use. Messages of tasks that are not supervised are kept as ever.
"""

from __future__ import annotations

from typing import Any, cast

from kombu.transport import redis, virtual

from supervisor.guard.delivery import run_header
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError

log = get_logger("supervisor.intake")


class RunQoS(redis.QoS):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._of_runs: set[str] = set()

    def append(self, message: Any, delivery_tag: str) -> None:
        if run_header(message) is None:
            super().append(message, delivery_tag)
            return
        self._of_runs.add(delivery_tag)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if delivery_tag in self._of_runs:
            self._forget(delivery_tag)
        elif self._has(delivery_tag):
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if delivery_tag not in self._of_runs:
            if self._has(delivery_tag):
                super().reject(delivery_tag, requeue)
            return
        if requeue:
            self.restore_by_tag(delivery_tag, leftmost=True)
        self._forget(delivery_tag)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Puts back a message that no child has taken, for example because the worker is ending."""
        if tag not in self._of_runs:
            super().restore_by_tag(tag, client, leftmost)
            return
        delivered, channel = cast(Any, self._delivered), cast(Any, self.channel)
        if tag not in delivered:  # put back before, when the connection was lost
            return
        message = delivered[tag]
        place = message.delivery_info["exchange"], message.delivery_info["routing_key"]
        with channel.conn_or_acquire(client) as connected:
            channel._do_restore_message(message._raw, *place, connected, leftmost)

    def restore_unacked(self, client: Any = None) -> None:
        """Puts back what is unacknowledged, as far as the broker can be reached.

        The rest comes again by itself: runs from the ledger, other messages from kombu's copies.
        Raises nothing: a worker that has lost its connection is about to make a new one, and
        Celery takes an error from here for its own end.
        """
        delivered = cast(Any, self._delivered)
        try:
            if client or self.channel.connection.client:  # it has none once it is collected
                super().restore_unacked(client)
        except (RedisError, OSError) as error:
            log.warning("messages not put back", messages=len(delivered), error=str(error))
        delivered.clear()
        self._of_runs.clear()

    def _has(self, delivery_tag: str) -> bool:
        """False for the message of a connection that was lost while its task was running.

        It was put back. kombu would ask the lost channel for its connection, which it has no more,
        and the worker would end (with late acknowledgement).
        """
        return delivery_tag in cast(Any, self._delivered)

    def _forget(self, delivery_tag: str) -> None:
        self._of_runs.discard(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)


def keep_no_record_of_runs() -> None:
    """Uses RunQoS for the connections that this process makes from now on."""
    redis.Channel.QoS = RunQoS
