"""Which beat leads, by the ledger's word and by the beats' own, and from when on one does again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from supervisor.ledger.leader import LEADER_TTL
from supervisor.ledger.ledger import Ledger
from tests.written import whole_lines
from tools.chaos.chronicle import Chronicle, Kind, Window
from tools.chaos.evidence import Finding
from tools.chaos.intervals import Interval
from tools.chaos.member import Member

#: A leader's lock runs out, a standby looks each second, its first tick takes a moment. What takes
#: longer is no excuse any more.
LONGEST_WITHOUT_LEADER = LEADER_TTL.total_seconds() + 3.0

#: A tick that was under way when its beat was struck.
LAST_BREATH_SECONDS = 0.2


class Leadership:
    """`epoch`: when the monotonic clock was 0, in seconds since 1970."""

    def __init__(
        self, ledger: Ledger, beats: list[Member], chronicle: Chronicle, epoch: float
    ) -> None:
        self._ledger = ledger
        self._beats = beats
        self._chronicle = chronicle
        self._epoch = epoch
        self.leader: Member | None = None

    def poll(self) -> None:
        """Closes the windows of those faults of beats after which a beat has led again."""
        beat = self._ledger.beat()
        pid = (beat.leader or "").rpartition(":")[2]
        self.leader = next((member for member in self._beats if str(member.pid) == pid), None)
        signed = beat.last_tick_at.timestamp() - self._epoch if beat.last_tick_at else 0.0
        for window in list(self._chronicle.open_windows):
            led_again = signed > window.start + LAST_BREATH_SECONDS
            too_long = time.monotonic() > window.start + LONGEST_WITHOUT_LEADER
            if window.kind is Kind.NO_LEADER and (led_again or too_long):
                self._chronicle.closed(window)

    def findings(self, windows: Sequence[Window]) -> Iterator[Finding]:
        """A beat that began to lead while another did, without a fault that had ended that."""
        leader = None
        for at, word, beat in sorted(self._words()):
            if word == "leadership held elsewhere":
                leader = None if leader == beat else leader
                continue
            recently = Interval(at - LONGEST_WITHOUT_LEADER, at)
            if leader not in (None, beat) and not any(
                window.kind is Kind.NO_LEADER and window.interval.touches(recently)
                for window in windows
            ):
                yield Finding("two beats lead", beat, f"{leader} has led, and was not relieved")
            leader = beat

    def _words(self) -> Iterator[tuple[float, str, str]]:
        """When each beat wrote into its log that it leads, or stands by."""
        for beat in self._beats:
            for line in whole_lines(beat.log):
                if '"leadership taken"' in line or '"leadership held elsewhere"' in line:
                    record = json.loads(line)
                    at = datetime.fromisoformat(record["timestamp"]).timestamp() - self._epoch
                    yield at, record["event"], beat.name
