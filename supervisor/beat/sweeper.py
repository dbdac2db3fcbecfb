"""Takes the messages of runs that ended before they began out of the queues of Redis.

The workers of a queue drop the message of a run that has expired, or was cancelled or replaced.
Without workers such messages would pile up, one for each run, until a worker is started.

1. The functions that end such a run note its queue in the ledger.
2. The leading beat looks at the oldest and the newest messages of these queues, and removes those
   of its ledger's ended runs. As long as it finds any, there may be more behind them.
3. A queue in which it finds none is not looked at again until another of its runs ends.

Only where the broker is Redis: others cannot take one message out of the middle of a queue, and
RabbitMQ drops a message that has expired by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from supervisor.guard.delivery import HEADER, LEDGER
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.sending.app_settings import identity_of
from supervisor.sending.queues import channel_of

#: How many of the oldest and of the newest messages of a queue are looked at. To remove one, Redis
#: compares all between it and the end of the queue, which takes 0.4 ms for this many.
MESSAGES_READ = 1_000

#: Between two sweeps, since a broker that hangs costs seconds each time; and for one sweep.
PAUSE_SECONDS = 5.0
SWEEPING_SECONDS = 0.2

log = get_logger("supervisor.beat")


class Sweeper:
    def __init__(self, app: Celery, ledger: Ledger, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._app = app
        self._ledger = ledger
        self._identity = identity_of(app, ledger.keys.prefix)
        self._pause_seconds = pause_seconds
        self._next_at = 0.0

    def sweep(self) -> int:
        """Returns how many messages were removed; asks the broker once every `pause_seconds`."""
        if time.monotonic() < self._next_at:
            return 0
        self._next_at = time.monotonic() + self._pause_seconds
        removed, until = 0, time.monotonic() + SWEEPING_SECONDS
        client, noted = self._ledger.client, self._ledger.keys.leftovers
        try:
            with channel_of(self._app) as channel:
                for queue in self._ledger.leftovers():
                    client.srem(noted, queue)  # first: a run that ends meanwhile notes it again
                    for key in lists_of(channel, queue):
                        while ended := self._remove_ended(channel.client, key):
                            removed += ended
                            if time.monotonic() > until:
                                client.sadd(noted, queue)
                                return removed
        except (OperationalError, OSError) as error:
            log.warning("queues not swept", error=str(error))
        finally:
            if removed:
                log.info("messages of ended runs removed", messages=removed)
        return removed

    def _remove_ended(self, client: Any, key: str) -> int:
        """Removes those among the oldest and the newest messages of a list; returns how many."""
        newest = dict.fromkeys(client.lrange(key, 0, MESSAGES_READ - 1), 1)
        texts = newest | dict.fromkeys(client.lrange(key, -MESSAGES_READ, -1), -1)
        runs = {text: run for text in texts if (run := run_of(text, self._identity))}
        ended = self._ledger.ended([*runs.values()])
        with client.pipeline(transaction=False) as pipe:
            for text in (text for text, run in runs.items() if run in ended):
                pipe.lrem(key, texts[text], text)  # from the end that is nearer
            return sum(pipe.execute())


def lists_of(channel: Any, queue: str) -> Iterator[str]:
    """The lists of a queue, one for each priority; none of a broker that is not Redis."""
    for priority in getattr(channel, "priority_steps", ()):
        yield channel._q_for_pri(queue, priority)


def run_of(text: bytes, identity: Sequence[str]) -> str | None:
    """The run that a message is for; None for a message of no run, or of another ledger's, which
    may have the same id."""
    try:
        headers = json.loads(text)["headers"]
        return str(headers["id"]) if headers[HEADER][LEDGER] == identity else None
    except (ValueError, TypeError, KeyError):
        return None
