"""The outbox of pings: starts and ends of runs that a job's `ping_url` is still to be told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import instant


class PingKind(StrEnum):
    """What a ping makes of the check; see attempts.lua."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Ping:
    """`text`: as it stands in the outbox. attempt: 0 for a run that never began."""

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
    def of(cls, text: str) -> Ping | None:
        """None when it is not what the scripts write: by hand, or by another version."""
        try:
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
        except (ValueError, KeyError, TypeError, OverflowError):
            return None


class Pings:
    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def waiting(self, limit: int) -> list[Ping]:
        """The oldest of them, without what cannot be read."""
        return self.oldest(limit)[0]

    def oldest(self, limit: int) -> tuple[list[Ping], list[str]]:
        """What is waiting, and the texts between them that cannot be read."""
        texts = self._client.lrange(self._keys.pings, 0, limit - 1)
        found = [(text, Ping.of(text)) for text in texts]
        return [ping for _, ping in found if ping], [text for text, ping in found if ping is None]

    def done(self, ping: Ping) -> None:
        self.remove(ping.text)

    def remove(self, text: str) -> None:
        self._client.lrem(self._keys.pings, 1, text)

    def drop(self, ping: Ping) -> None:
        """Gives it up, and counts that; once, if two beats do."""
        if self._client.lrem(self._keys.pings, 1, ping.text):
            self._client.hincrby(self._keys.job(ping.job), "n:pings_dropped", 1)
