"""How the ledger is read: its server's clock, and a reply for each of many items."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from redis.client import Pipeline

from supervisor.ledger.functions import Functions
from supervisor.ledger.leader import NOT_LEADING, Leadership
from supervisor.store.connection import Client
from supervisor.store.keys import Keys
from supervisor.times import instant

T = TypeVar("T")


#: Jobs or runs read in one pipeline: no reply keeps the server busy for long.
CHUNK = 500


class Reader:
    """What all reads of the ledger share."""

    leadership: Leadership = NOT_LEADING
    """In whose name its functions are called."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.functions = Functions(client, keys)

    def now(self) -> datetime:
        """The server's clock, by which all instants of the ledger are."""
        seconds, microseconds = self.client.time()
        return instant(seconds * 1000 + microseconds // 1000)

    def read_each(
        self, items: Iterable[T], ask: Callable[[Pipeline, T], object]
    ) -> Iterator[tuple[T, Any]]:
        """Each item with the reply to what is asked for it; a round trip for CHUNK of them."""
        for chunk in chunks(list(items)):
            with self.client.pipeline(transaction=False) as pipe:
                for item in chunk:
                    ask(pipe, item)
                replies = pipe.execute()
            yield from zip(chunk, replies, strict=True)

    def read_fields(self, run_ids: Iterable[str], *fields: str) -> Iterator[tuple[str, Any]]:
        """Each run with a field of its record, or a list of several; None for one it has not."""

        def ask(pipe: Pipeline, run_id: str) -> None:
            if len(fields) == 1:
                pipe.hget(self.keys.run(run_id), fields[0])
            else:
                pipe.hmget(self.keys.run(run_id), fields)

        return self.read_each(run_ids, ask)

    def _some_fields(self, key: str, names: Collection[str]) -> dict[str, str]:
        fields: dict[str, str] = {}
        for some in chunks(list(names)):
            values = zip(some, self.client.hmget(key, some), strict=True)
            fields |= {name: value for name, value in values if value is not None}
        return fields

    def _fields(self, key: str) -> dict[str, str]:
        """A hash of any size, piece by piece, so that nothing waits for all of it."""
        return dict(self.client.hscan_iter(key, count=2 * CHUNK))


def chunks(items: Sequence[T], size: int = CHUNK) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
