"""What the scripts leave in the ledger for the leading beat to tell to others: a list of JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from supervisor.ledger.connection import Client

log = structlog.get_logger("supervisor.ledger")


class Entry(Protocol):
    """`text`: as it stands in the list."""

    @property
    def text(self) -> str: ...


E = TypeVar("E", bound=Entry)


class Backlog(Generic[E]):
    """The entries of one list, until somebody is done with them.

    read: a text of the list -> its entry; of what is not written so - by hand, or by another
    version - it raises ValueError, KeyError, TypeError or OverflowError.
    """

    def __init__(self, client: Client, key: str, read: Callable[[str], E]) -> None:
        self._client = client
        self._key = key
        self._read = read

    def oldest(self, limit: int) -> list[E]:
        """What cannot be read is dropped, and a line in the log says so."""
        found = []
        for text in self._client.lrange(self._key, 0, limit - 1):
            try:
                found.append(self._read(text))
            except (ValueError, KeyError, TypeError, OverflowError):
                if self._remove(text):
                    log.error("unreadable entry dropped", key=self._key, text=text[:200])
        return found

    def done(self, entry: E) -> bool:
        """Takes it out. Whether it was still there: two beats may be at it."""
        return self._remove(entry.text)

    def _remove(self, text: str) -> bool:
        return bool(self._client.lrem(self._key, 1, text))
