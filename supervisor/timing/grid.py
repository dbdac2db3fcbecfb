"""`every`: a grid over the Unix epoch in UTC, so that neither restarts nor clocks move it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.times.clock import EPOCH


@dataclass(frozen=True, slots=True)
class Every:
    """`phase` after the multiples of `step`: exact integer arithmetic, so they never drift."""

    step: timedelta
    phase: timedelta = timedelta()

    def next_after(self, at: datetime) -> datetime | None:
        with suppress(OverflowError):
            return EPOCH + self.phase + self.step * (self._steps_until(at) + 1)
        return None

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, self._steps_until(until) - self._steps_until(after))

    def _steps_until(self, at: datetime) -> int:
        return (at - EPOCH - self.phase) // self.step
