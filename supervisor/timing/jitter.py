"""`jitter`: each tick is shifted by a constant of its own, and the shifted instant is the tick.

The shift is a hash of the job's name and of the time that the schedule names, in whole seconds. It
is shorter than the way to the next time, so ticks stay in order and none is lost. Beat, workers and
`plan` compute the same instants without having to remember anything.

That the shifted instant is the tick's identity keeps the rest simple: a tick is due at its nominal
time, the watermark is the last nominal time dealt with, and both are read from one clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.timing.protocol import Schedule
from supervisor.timing.windows import count_between, last_between

SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Jittered:
    """`end`: that of the job, which a shifted tick does not pass either."""

    schedule: Schedule
    longest: timedelta
    name: str
    end: datetime | None = None

    def next_after(self, at: datetime) -> datetime | None:
        before = last_between(self.schedule, at - self.longest - SECOND, at, keep=1)
        if before and (shifted := self._shifted(before[0])) > at:
            return shifted
        tick = self.schedule.next_after(at)
        return self._shifted(tick) if tick is not None else None

    def count(self, after: datetime, until: datetime) -> int:
        """As many as are named, but for one at each end that is shifted out of the span or in."""
        named = count_between(self.schedule, after, until)
        return named + self._shifted_past(after) - self._shifted_past(until)

    def _shifted_past(self, at: datetime) -> bool:
        before = last_between(self.schedule, at - self.longest - SECOND, at, keep=1)
        return bool(before) and self._shifted(before[0]) > at

    def _shifted(self, tick: datetime) -> datetime:
        limits = [self.longest // SECOND]
        limits += [
            -(-(limit - tick) // SECOND) - 1
            for limit in (self.schedule.next_after(tick), self.end)
            if limit is not None
        ]
        digest = hashlib.sha256(f"{self.name}@{tick.isoformat()}".encode()).digest()
        return tick + int.from_bytes(digest[:8]) % (min(limits) + 1) * SECOND
