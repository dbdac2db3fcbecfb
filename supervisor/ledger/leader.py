"""Leadership of beat: any number run, one leads, and only it emits.

1. A beat asks at each tick; the lock is taken when it is free and extended when it is its own.
2. The lock lives `LEADER_TTL` after the leader's last tick, so a standby leads at the latest that
   long after the leader died, and at once when it resigned.
3. What a beat does to the ledger carries its token, and the scripts look at the lock again: a
   leader that slept past its lock cannot emit anything when it wakes.

The lock is RedBeat's own key, so that a stock RedBeat beside us stands by as well.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from uuid import uuid4

from supervisor.durations import to_ms
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import ms_of
from supervisor.ledger.scripts import source
from supervisor.ledger.ticks import Leadership

LEADER_TTL = timedelta(seconds=12)

#: A time without any beat that is longer than a change of leaders, and is remembered.
SILENCE = timedelta(seconds=15)
SILENCES_KEPT = 50


class Leader:
    """One beat's claim to lead; `instance` is what people see of it."""

    def __init__(self, client: Client, key: str) -> None:
        self.instance = f"{socket.gethostname()}:{os.getpid()}"
        self.leadership = Leadership(key, f"{self.instance}:{uuid4().hex}")
        self._script = client.register_script(source("leader"))
        self._sign = client.register_script(source("sign"))

    def lead(self) -> bool:
        """Takes or extends the lock; True when this beat leads for another `LEADER_TTL`."""
        return self._call(LEADER_TTL)

    def resign(self) -> bool:
        return self._call(timedelta())

    def sign(self, keys: Keys, now: datetime, follows: str) -> None:
        """Leaves a sign of life: a tick was done, while the lock was still this beat's.

        follows: digest of the schedule files that this beat loads, or nothing.
        """
        self._sign(
            keys=[self.leadership.key, keys.beat, keys.away],
            args=[
                *(self.leadership.token, self.instance, ms_of(now), follows),
                *(to_ms(SILENCE), SILENCES_KEPT),
            ],
        )

    def _call(self, ttl: timedelta) -> bool:
        return bool(
            self._script(keys=[self.leadership.key], args=[self.leadership.token, to_ms(ttl)])
        )
