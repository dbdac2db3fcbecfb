"""The outbox of pings: starts and ends of runs that a job's `ping_url` is still to be told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from supervisor.ledger.backlog import Backlog
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
