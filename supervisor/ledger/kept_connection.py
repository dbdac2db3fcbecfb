"""One connection of a client's pool, kept at hand for whoever calls next.

To take one from redis-py's pool and give it back costs a worker's child a sixth of the processor
that the guard costs it, in locks and in counters that nobody reads. What the pool looks at is
looked at here as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from supervisor.ledger.connection import Client, RedisError


class KeptConnection:
    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        # It lives as long as the pool, whose connections are numbered, and is one for all who ask.
        self._kept: list[Any] = vars(self._pool).setdefault("kept_by_supervisor", [])

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """Connected, and the caller's own; closed after an exception, for a reply may still come.

        Raises what connecting does.
        """
        connection = self._take()
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            self._pool.release(connection)
            raise
        if self._kept or not self._is_wanted(connection):
            self._pool.release(connection)
        else:
            self._kept.append(connection)

    def _take(self) -> Any:
        try:
            connection = self._kept.pop()
        except IndexError:  # also where another thread was quicker
            return self._pool.get_connection()
        if is_ready(connection):
            return connection
        self._pool.release(connection)
        return self._pool.get_connection()

    def _is_wanted(self, connection: Any) -> bool:
        """Not one to a primary that is none any more, or that is about to go (since redis-py 7)."""
        is_leaving = getattr(connection, "should_reconnect", bool)
        return self._pool.owns_connection(connection) and not is_leaving()


def is_ready(connection: Any) -> bool:
    """Not a copy of a parent process' own, not closed, and with nothing to be read first."""
    try:
        return connection.pid == os.getpid() and not connection.can_read()
    except (RedisError, OSError):
        return False
