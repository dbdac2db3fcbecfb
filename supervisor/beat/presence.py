"""What a beat reports of itself, and of the workers of its machine that are gone.

It does so in its turns, not from a thread: a beat that hangs is not present.
"""

from __future__ import annotations

import time

from supervisor.beat.turn import EachSecond, Turn
from supervisor.guard.reaper import Reaper
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import PRESENCE_INTERVAL, BeatProcess, Broker, Registration


class Presence:
    """name: of this beat, for people."""

    def __init__(self, ledger: Ledger, broker: Broker, name: str) -> None:
        self._registration = Registration(ledger, broker)
        self._reaper = Reaper(ledger)
        self._reaps = EachSecond()
        self._name = name
        self._next_at = 0.0
        self._leads = False
        self._fault: str | None = None

    def is_due(self, _: Turn) -> bool:
        return True

    def do(self, turn: Turn) -> None:
        self.report(leads=True, reaps=self._reaps.is_due(turn))

    def report(self, *, leads: bool, reaps: bool = True) -> None:
        """Once every PRESENCE_INTERVAL, and when that changes; dead workers at once, if it reaps.

        Raises WrongSchema when another version of this code writes the ledger.
        """
        if leads is not self._leads:
            self._leads, self._next_at = leads, 0.0
        self._say()
        if reaps:
            self._reaper.reap()

    def report_fault(self, fault: str) -> None:
        """Why a turn failed, if the server answers but refuses."""
        if self._fault is None:
            self._next_at = 0.0
        self._fault = fault
        self._say()

    def has_no_fault(self) -> None:
        self._fault = None

    def _say(self) -> None:
        if time.monotonic() >= self._next_at:
            self._registration.say(BeatProcess(self._name, self._leads), fault=self._fault)
            self._next_at = time.monotonic() + PRESENCE_INTERVAL.total_seconds()

    def leave(self) -> None:
        self._registration.leave()
