"""A broker that brings messages twice, or loses them: a consumer of its own beside the workers."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress

import redis

TAKE_SECONDS = 3

#: After the first copy: while the run is at work, or once it has ended.
SECOND_COPY_SECONDS = ((0.3, 2.0), (4.0, 9.0))


class Redelivery:
    """Takes the next message of one of the queues, which a worker would have taken."""

    def __init__(self, url: str, queues: Sequence[str], rng: random.Random) -> None:
        self._url = url
        self._queues = queues
        self._rng = rng
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def twice(self) -> None:
        """The message is brought at once, and again some seconds later."""
        bounds = self._rng.choice(SECOND_COPY_SECONDS)
        self._start((0.0, self._rng.uniform(*bounds)))

    def never(self) -> None:
        """The message is lost between broker and worker."""
        self._start(())

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * TAKE_SECONDS)

    def _start(self, delays: tuple[float, ...]) -> None:
        thread = threading.Thread(target=self._redeliver, args=(delays,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _redeliver(self, delays: tuple[float, ...]) -> None:
        with (
            redis.Redis.from_url(self._url, socket_timeout=2 * TAKE_SECONDS) as client,
            suppress(redis.RedisError),  # a broker that died with it has lost it
        ):
            taken = client.brpop(list(self._queues), TAKE_SECONDS)
            if not taken:
                return
            queue, message = taken
            for delay in delays:
                self._stopping.wait(delay)
                client.rpush(queue, message)
