"""What waits in the ledger to be sent to others, by destination (features/outbound/sender.py sends
it).

1. The functions that begin and end runs write an entry, with the change of state itself
   (reports.lua): into a list of the job, one for each kind. Notices are made by the leading beat
   (features/notices), and wait in a hash of their destination.
2. A destination is tried when its oldest entry is due, and later if it was unavailable: `due`.
3. An entry is taken off once it was taken or given up, if it is still what was sent
   (delivered.lua). A beat that dies in between sends the same again, under the same key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from supervisor.ledger.function_library import digest
from supervisor.ledger.ledger import Ledger
from supervisor.times import instant, ms_of

#: Destinations of a turn, and entries of a list that are read at once.
DESTINATIONS_AT_A_TIME = 1_000
ENTRIES_AT_A_TIME = 100

#: The field of a destination's notices that is none; see keys.py.
LATEST = "latest"

WRITTEN_AT = re.compile(r'"at":(\d+)')


def due_at(entry_id: str) -> datetime:
    """Of an entry that has an id: its last word."""
    return datetime.fromtimestamp(int(entry_id.rpartition(" ")[2]) / 1000, UTC)


class Kind(StrEnum):
    """What is sent: the first word of a destination."""

    PING = "ping"
    CHECK_IN = "check_in"
    REVOCATION = "revocation"
    NOTICE = "notice"


class End(StrEnum):
    """Why an entry leaves: the first two are counted."""

    SENT = "sent"
    DROPPED = "dropped"
    UNWANTED = "unwanted"


@dataclass(frozen=True, slots=True)
class Unsent:
    """One entry that waits to be sent."""

    destination: str
    """Its kind, a blank, and a job or the digest of an address."""

    id: str
    """That of a notice; '' for an entry of a list."""

    text: str = field(repr=False)
    """JSON, as it stands in the ledger."""

    since: datetime
    """When it was due."""

    @property
    def kind(self) -> Kind:
        return Kind(self.destination.partition(" ")[0])

    @property
    def name(self) -> str:
        """The job, or the digest of the address."""
        return self.destination.partition(" ")[2]

    @property
    def key(self) -> str:
        """Of just this content: the same whenever it is sent again."""
        return digest(f"{self.name} {self.id} {self.text}")


class ReportKind(StrEnum):
    """What a ping makes of the check; see reports.lua."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"
    LOG = "log"


class RunReport(BaseModel):
    """A run that began or ended, as it waits in a list."""

    model_config = ConfigDict(frozen=True)

    run: str
    job: str
    at: Annotated[datetime, BeforeValidator(instant)]
    outcome: str
    reason: str
    kind: ReportKind = ReportKind.LOG

    attempt: int = 0
    """Its number; 0 if the run never began."""

    lasted: Annotated[timedelta, BeforeValidator(lambda ms: timedelta(milliseconds=ms))] = (
        timedelta()
    )


@dataclass(frozen=True, slots=True)
class OutboundFigures:
    sent: Mapping[str, int]
    """How many were, by kind."""

    dropped: Mapping[str, int]
    """How many were, by kind."""

    oldest_at: datetime | None
    """Since when the oldest entry waits; None if nothing does."""


class LedgerOutbox:
    """The outbox of one ledger (features/outbound/sender.py). All methods raise RedisError."""

    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._functions = ledger.functions

    def due(self, now: datetime) -> list[str]:
        """Destinations that something is to be sent to now, those that wait longest first."""
        due: list[str] = self._client.zrangebyscore(
            self._keys.outbound, "-inf", ms_of(now), 0, DESTINATIONS_AT_A_TIME
        )
        return due

    def unsent(self, destination: str, now: datetime) -> list[Unsent]:
        """What is due there, in order."""
        key = self._keys.to_send(destination)
        if destination.startswith(f"{Kind.NOTICE} "):
            fields = self._client.hgetall(key)
            ids = sorted((id for id in fields if id != LATEST), key=due_at)
            return [
                Unsent(destination, id, fields[id], due_at(id)) for id in ids if due_at(id) <= now
            ]
        texts = self._client.lrange(key, 0, ENTRIES_AT_A_TIME - 1)
        return [Unsent(destination, "", text, written_at(text, now)) for text in texts]

    def take_off(self, entry: Unsent, end: End) -> bool:
        """Whether it was still there, and still this: two beats may be sending."""
        return self._update(entry, end)

    def put_off(self, entry: Unsent, until: datetime) -> bool:
        """Its destination is unavailable, and is not tried before. Returns as `take_off`."""
        return self._update(entry, ms_of(until))

    def figures(self) -> OutboundFigures:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.outbound_counts)
            pipe.zrange(self._keys.unsent, 0, 0, withscores=True)
            counts, oldest = pipe.execute()

        def of(end: End) -> Mapping[str, int]:
            return {kind.value: int(counts.get(f"{end}:{kind}", 0)) for kind in Kind}

        oldest_at = instant(oldest[0][1]) if oldest else None
        return OutboundFigures(of(End.SENT), of(End.DROPPED), oldest_at)

    def _update(self, entry: Unsent, result: str | int) -> bool:
        arguments = (entry.destination, entry.id, entry.text, result)
        return bool(self._functions("delivered", *arguments))


def written_at(text: str, now: datetime) -> datetime:
    """When an entry of a list was written; `now` if it does not say so."""
    match = WRITTEN_AT.search(text)
    return instant(match[1]) if match else now
