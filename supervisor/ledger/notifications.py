"""Notifications that the functions write down, for the leading beat to send: lists of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import instant
from supervisor.logs import get_logger

log = get_logger("supervisor.ledger")


class Entry(Protocol):
    """`text`: as it stands in the list."""

    @property
    def text(self) -> str: ...


E = TypeVar("E", bound=Entry)


class Backlog(Generic[E]):
    """The entries of one list, until a beat is done with them.

    read: a text of the list -> its entry; of what is not written so - by hand, or by another
    version - it raises ValueError, KeyError, TypeError or OverflowError.
    """

    def __init__(self, client: Client, key: str, read: Callable[[str], E]) -> None:
        self._client = client
        self._key = key
        self._read = read

    def oldest(self, limit: int) -> list[E]:
        """An entry that cannot be read is dropped and logged."""
        found = []
        for text in self._client.lrange(self._key, 0, limit - 1):
            try:
                found.append(self._read(text))
            except (ValueError, KeyError, TypeError, OverflowError):
                if self._remove(text):
                    log.error("unreadable entry dropped", key=self._key, text=text[:200])
        return found

    def done(self, entry: E) -> bool:
        """Removes it. Whether it was still there: two beats may be sending."""
        return self._remove(entry.text)

    def _remove(self, text: str) -> bool:
        return bool(self._client.lrem(self._key, 1, text))


# Pings: starts and ends of runs that are still to be sent to a job's `ping_url`.


class PingKind(StrEnum):
    """What a ping makes of the check; see accounts.lua."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Ping:
    """`text`: as it stands in the list. attempt: 0 for a run that never began."""

    run: str
    job: str
    kind: PingKind
    at: datetime
    outcome: str
    reason: str
    attempt: int
    lasted: timedelta
    text: str = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Ping:
        facts = json.loads(text)
        return cls(
            run=facts["run"],
            job=facts["job"],
            kind=PingKind(facts["kind"]),
            at=instant(facts["at"]),
            outcome=facts["outcome"],
            reason=facts["reason"],
            attempt=int(facts["attempt"]),
            lasted=timedelta(milliseconds=facts["lasted"]),
            text=text,
        )


class Pings(Backlog[Ping]):
    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys.pings, Ping.of)
        self._keys = keys

    def drop(self, ping: Ping) -> None:
        """Gives it up, and counts that; once, if two beats do."""
        if self.done(ping):
            self._client.hincrby(self._keys.job(ping.job), "n:pings_dropped", 1)


# Revocations: calls that ended before they began, still to be sent to Celery's result backend.


@dataclass(frozen=True, slots=True)
class Revocation:
    """`text`: as it stands in the list."""

    run: str
    job: str
    at: datetime
    outcome: str
    reason: str
    text: str = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Revocation:
        facts = json.loads(text)
        return cls(
            run=facts["run"],
            job=facts["job"],
            at=instant(facts["at"]),
            outcome=facts["outcome"],
            reason=facts["reason"],
            text=text,
        )


class Revocations(Backlog[Revocation]):
    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys.revocations, Revocation.of)
