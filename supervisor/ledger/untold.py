"""Calls that ended before they began: what Celery's result backend is still to be told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from supervisor.ledger.backlog import Backlog
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import instant


@dataclass(frozen=True, slots=True)
class Word:
    """`text`: as it stands in the list."""

    run: str
    job: str
    at: datetime
    outcome: str
    reason: str
    text: str = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Word:
        facts = json.loads(text)
        return cls(
            run=facts["run"],
            job=facts["job"],
            at=instant(facts["at"]),
            outcome=facts["outcome"],
            reason=facts["reason"],
            text=text,
        )


class Untold(Backlog[Word]):
    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys.untold, Word.of)
