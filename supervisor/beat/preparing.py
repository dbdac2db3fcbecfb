"""Works out ahead what the next ticks need: specs, schedules, messages of jobs that are due soon.

Beat has the time now, and has none when thousands of jobs are due in the same second.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from supervisor.beat.entries import Entries
from supervisor.ledger.leader import Look
from supervisor.ledger.runs import Ledger
from supervisor.sending.envelopes import Envelopes
from supervisor.timing import schedule_of

#: How far ahead, how many jobs at a time, and how long before it is needed again beat stops.
AHEAD = timedelta(seconds=60)
JOBS_PER_PORTION = 100
MARGIN_SECONDS = 0.1


class Preparer:
    """Asks once of each moment which jobs it has; anew when other schedule files are loaded."""

    def __init__(self, ledger: Ledger, entries: Entries, envelopes: Envelopes) -> None:
        self._ledger = ledger
        self._entries = entries
        self._envelopes = envelopes
        self._loaded: str | None = None
        self._asked_until = datetime.min.replace(tzinfo=UTC)
        self._left: list[str] = []

    def prepare(self, look: Look, seconds: float) -> None:
        """Spends up to so many seconds on it; what is left is first the next time."""
        deadline = time.monotonic() + seconds - MARGIN_SECONDS
        if look.next_due is None or look.next_due >= look.at + AHEAD:
            return
        if self._loaded != look.loaded:
            self._loaded, self._asked_until, self._left = look.loaded, look.at, []
        since, self._asked_until = max(look.at, self._asked_until), look.at + AHEAD
        self._left += self._envelopes.unknown_of(self._entries.soon(since, self._asked_until))
        while self._left and time.monotonic() < deadline:
            portion, self._left = self._left[:JOBS_PER_PORTION], self._left[JOBS_PER_PORTION:]
            for spec in self._ledger.some_specs(portion).values():
                schedule_of(spec)
                self._envelopes.prepare(spec)
