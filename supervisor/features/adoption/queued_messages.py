"""Takes the messages of a ledger's runs out of the queues of its app, whose workers are stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from supervisor.beat.sweeper import lists_of, run_of
from supervisor.guard.delivery import HEADER, LEDGER
from supervisor.sending.queues import message_count

#: Messages that one command reads.
MESSAGES_AT_ONCE = 500


def take_out_of_redis(channel: Any, queues: Iterable[str], identity: Sequence[str]) -> int:
    """Returns how many messages were taken out."""
    taken, client = 0, channel.client
    for key in (key for queue in queues for key in lists_of(channel, queue)):
        left = 0
        while texts := client.lrange(key, -left - MESSAGES_AT_ONCE, -left - 1):
            own = [text for text in texts if run_of(text, identity)]
            for text in own:
                client.lrem(key, -1, text)
            taken += len(own)
            left += len(texts) - len(own)
    return taken


def take_out(channel: Any, queues: Iterable[str], identity: Sequence[str]) -> int:
    """The same for an AMQP broker, which gives messages from a queue's front alone.

    Those of others are kept until each queue is through, and are back in their places, marked as
    redelivered, once the channel is closed.
    """
    taken = 0
    for queue in queues:
        for _ in range(message_count(channel, queue)):
            fetched = channel.basic_get(queue)
            if fetched is None:
                break
            message = channel.message_to_python(fetched)
            header = message.headers.get(HEADER) if isinstance(message.headers, dict) else None
            if isinstance(header, dict) and header.get(LEDGER) == identity:
                message.ack()
                taken += 1
    return taken
