"""Calls that ended before they began: what Celery's result backend is still to be told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import instant


@dataclass(frozen=True, slots=True)
class Word:
    """`text`: as it stands in the ledger."""

    run: str
    job: str
    at: datetime
    outcome: str
    reason: str
    text: str = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Word | None:
        """None when it is not what records.lua leaves: by hand, or by another version."""
        try:
            facts = json.loads(text)
            return cls(**{**facts, "at": instant(facts["at"])}, text=text)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None


class Untold:
    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def oldest(self, limit: int) -> list[Word]:
        """What cannot be read goes."""
        found = []
        for text in self._client.lrange(self._keys.untold, 0, limit - 1):
            if word := Word.of(text):
                found.append(word)
            else:
                self._remove(text)
        return found

    def remove(self, word: Word) -> None:
        self._remove(word.text)

    def _remove(self, text: str) -> None:
        self._client.lrem(self._keys.untold, 1, text)
