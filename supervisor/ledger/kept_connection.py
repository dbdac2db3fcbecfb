"""One connection of a client's pool, kept at hand for whoever calls next.

To take one from redis-py's pool and give it back costs a worker's child a sixth of the processor
that the guard costs it, in locks and in counters that nobody reads. What the pool looks at is
looked at here as well.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from supervisor.ledger.connection import Client, RedisError


class KeptConnection:
    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._kept: list[Any] = []

    def take(self) -> Any:
        """Connected, and the caller's own until it is given back. Raises what connecting does."""
        with suppress(IndexError):  # threads take from the list at once
            connection = self._kept.pop()
            if is_ready(connection):
                return connection
            self._pool.release(connection)
        return self._pool.get_connection()

    def give_back(self, connection: Any) -> None:
        is_good = self._pool.owns_connection(connection) and not connection.should_reconnect()
        if is_good and connection.is_connected and not self._kept:
            self._kept.append(connection)
        else:
            self._pool.release(connection)


def is_ready(connection: Any) -> bool:
    """Not a copy of a parent process' own, not closed, and with nothing to be read first."""
    try:
        return connection.pid == os.getpid() and not connection.can_read()
    except (RedisError, OSError):
        return False
