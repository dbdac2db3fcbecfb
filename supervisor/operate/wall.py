"""Times and lengths as sentences have them: by the job's clock, the date where it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from supervisor.operate.words import duration


@dataclass(frozen=True, slots=True)
class Wall:
    """The clock on the wall of a job, as somebody reads it `now`."""

    now: datetime
    zone: ZoneInfo

    def time(self, at: datetime) -> str:
        """``09:05``, ``09:05:30``; of another day than today ``2026-11-19 09:05``."""
        local = at.astimezone(self.zone)
        text = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
        if local.date() == self.now.astimezone(self.zone).date():
            return text
        return f"{local:%Y-%m-%d} {text}"

    def whole(self, at: datetime) -> str:
        """``2026-11-20 09:05 CET``."""
        local = at.astimezone(self.zone)
        text = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
        return f"{local:%Y-%m-%d} {text} {local:%Z}"

    def since(self, start: datetime) -> str:
        return lasted(start, self.now)


def lasted(start: datetime, end: datetime) -> str:
    """``7m12s``; clocks of different machines may make it nothing."""
    return duration(max(0.0, (end - start).total_seconds()))
