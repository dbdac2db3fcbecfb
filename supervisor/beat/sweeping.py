"""Removes messages from queues whose runs ended before they began: expired, cancelled, replaced.

The workers of a queue take such a message and drop it. Without workers it would stay there, one for
each run that expired, until one is started.

1. The functions that end such a run note its queue in the ledger.
2. The leading beat goes through the messages of these queues, oldest first, some at each turn, and
   removes those of runs that have ended, since these do not begin any more. A message of another
   ledger on the same queue, which may have the same run id, is signed with another key and stays.
3. A queue that was swept to its end is not looked at again until another of its runs ends.

Only where the broker is Redis: others cannot take one message out of the middle of a queue. To give
an app back, each queue of RabbitMQ is gone through once as a whole, see `take_out`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from supervisor.guard.delivery import HEADER
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.sending.queues import channel_of, message_count
from supervisor.sending.signing import Signer

#: Messages that one command reads, and that one turn looks at.
MESSAGES_AT_ONCE = 50
MESSAGES_PER_TURN = 1_000

#: Up to this many messages from either end of a queue are looked at. To remove one, Redis compares
#: all between it and the end, which takes 0.7 ms for this many. The others are left to workers, or
#: come nearer to an end.
DEEPEST = 2_000

#: Between two sweeps; a broker that hangs costs seconds each time.
PAUSE_SECONDS = 5.0

#: Of the messages of runs.
JSON = {"application/json"}

log = get_logger("supervisor.beat")


class Sweeper:
    def __init__(self, app: Celery, ledger: Ledger, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._app = app
        self._pause_seconds = pause_seconds
        self._ledger = ledger
        self._signer = Signer(ledger.client, ledger.keys)
        self._next_at = 0.0
        #: The queue that is being gone through, which may take more than one turn, and for each of
        #: its lists how many messages from the oldest on were kept.
        self.queue: str | None = None
        self._kept: dict[str, int] = {}

    def sweep(self) -> int:
        """Gives how many messages were removed; asks the broker once in `pause_seconds`."""
        if time.monotonic() < self._next_at:
            return 0
        self._next_at = time.monotonic() + self._pause_seconds
        removed = left = 0
        try:
            with channel_of(self._app) as channel:
                left = MESSAGES_PER_TURN
                while left > 0 and (queue := self.queue or self._next_queue()):
                    self.queue = queue
                    for key in keys_of(channel, queue):
                        left, swept = self._swept(channel, key, left)
                        removed += swept
                    if left > 0:
                        self.queue, self._kept = None, {}
        except (OperationalError, OSError) as error:
            log.warning("queues not swept", error=str(error))
        if removed:
            log.info("messages of ended runs removed", messages=removed)
        return removed

    def _next_queue(self) -> str | None:
        """Removed from the ledger first: a run that ends meanwhile notes its queue again."""
        found = self._ledger.leftovers()
        if found:
            self._ledger.client.srem(self._ledger.keys.leftovers, found[0])
        return found[0] if found else None

    def _swept(self, channel: Any, key: str, left: int) -> tuple[int, int]:
        """How many messages may still be looked at in this turn, and how many were removed."""
        removed, client = 0, channel.client
        while left > 0:
            kept = self._kept.get(key, 0)
            from_oldest = kept < DEEPEST
            if not from_oldest:
                kept = max(kept, client.llen(key) - DEEPEST)
            texts = client.lrange(key, -kept - MESSAGES_AT_ONCE, -kept - 1)
            if not texts:
                break
            left -= len(texts)
            dead = self._dead(channel, texts)
            with client.pipeline(transaction=False) as pipe:
                for text in dead:
                    pipe.lrem(key, -1 if from_oldest else 1, text)
                removed += sum(pipe.execute())
            self._kept[key] = kept + len(texts) - len(dead)
        return left, removed

    def _dead(self, channel: Any, texts: list[bytes]) -> list[bytes]:
        runs = {text: run for text in texts if (run := run_of(text))}
        ended = self._ledger.ended([*runs.values()])
        return [text for text, run in runs.items() if run in ended and self._is_own(channel, text)]

    def _is_own(self, channel: Any, text: bytes) -> bool:
        try:
            message = channel.message_to_python(json.loads(text))
        except Exception:  # noqa: BLE001 - whatever kombu raises of foreign text
            return False
        return is_of_run(message, self._signer)


def is_of_run(message: Any, signer: Signer) -> bool:
    """Whether this ledger has signed it, kombu's, as the message of a run."""
    message.accept = JSON
    try:
        task, header = message.headers["task"], message.headers[HEADER]
        args, kwargs, _ = message.decode()
        return signer.has_signed(task, args, kwargs, header)
    except RedisError:
        raise
    except Exception:  # noqa: BLE001 - whatever kombu raises of foreign text
        return False


def take_out(channel: Any, queues: Iterable[str], signer: Signer) -> int:
    """Takes the messages of all runs out of the queues of an AMQP broker; gives how many.

    It gives messages from a queue's front alone. Those of others are kept until each queue is
    through, and are back in their places, marked as redelivered, once the channel is closed.
    """
    taken = 0
    for queue in queues:
        for _ in range(message_count(channel, queue)):
            fetched = channel.basic_get(queue)
            if fetched is None:
                break
            message = channel.message_to_python(fetched)
            if is_of_run(message, signer):
                message.ack()
                taken += 1
    return taken


def keys_of(channel: Any, queue: str) -> Iterator[str]:
    """The lists of a queue, one for each priority; none of a broker that is not Redis."""
    for priority in getattr(channel, "priority_steps", ()):
        yield channel._q_for_pri(queue, priority)


def run_of(text: bytes) -> str | None:
    """The run that a message is for; None for a message of no run."""
    try:
        headers = json.loads(text)["headers"]
        return str(headers["id"]) if HEADER in headers else None
    except (ValueError, TypeError, KeyError):
        return None
