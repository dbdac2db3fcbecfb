"""`exclude`: a schedule without the times that lie on excluded days."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from supervisor.job.exclusions import parse
from supervisor.times.clock import DAY, INSTANT, midnight, reading
from supervisor.times.moments import instant
from supervisor.timing.protocol import HORIZON, Schedule
from supervisor.timing.windows import count_between

END_OF_CALENDAR = datetime.max.replace(tzinfo=UTC)

Stretch = tuple[datetime, datetime]
"""From, inclusive, and to, exclusive."""


@dataclass(frozen=True, slots=True)
class Excluding:
    """starts, ends: of the excluded stretches, which do not touch; weekdays are those of `zone`."""

    schedule: Schedule
    weekdays: frozenset[int]
    starts: Sequence[datetime]
    ends: Sequence[datetime]
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime | None:
        limit: datetime | None = None
        with suppress(OverflowError):
            while (tick := self.schedule.next_after(at)) is not None:
                limit = limit or tick + HORIZON
                if (free := self._free_from(tick)) == tick:
                    return tick
                if free > limit:
                    break
                at = free - INSTANT
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Those of each stretch between two exclusions."""
        count, start = 0, self._free_from(after + INSTANT)
        while start <= until:
            end = self._excluded_from(start)
            count += count_between(self.schedule, start - INSTANT, min(until, end - INSTANT))
            if end > until:
                break
            start = self._free_from(end)
        return count

    def _free_from(self, at: datetime) -> datetime:
        """The first instant from `at` on that is not excluded."""
        while True:
            index = bisect_right(self.starts, at) - 1
            if index >= 0 and at < self.ends[index]:
                at = self.ends[index]
            elif self.weekdays and at.astimezone(self.zone).weekday() in self.weekdays:
                at = self._midnight_after(at, 1)
            else:
                return at

    def _excluded_from(self, at: datetime) -> datetime:
        """The first excluded instant after `at`, which is none."""
        index = bisect_right(self.starts, at)
        stretch = self.starts[index] if index < len(self.starts) else END_OF_CALENDAR
        if not self.weekdays:
            return stretch
        today = at.astimezone(self.zone).weekday()
        days = min((weekday - today) % 7 for weekday in self.weekdays)
        return min(stretch, self._midnight_after(at, days))

    def _midnight_after(self, at: datetime, days: int) -> datetime:
        """So many midnights later; where clocks go back over midnight, the second counts too."""
        day = at.astimezone(self.zone).date() + days * DAY
        shown = reading(datetime(day.year, day.month, day.day), self.zone)
        return shown.first if shown.first > at else shown.second


def excluding(schedule: Schedule, texts: tuple[str, ...], zone: ZoneInfo) -> Excluding:
    """texts: those of `exclude`."""
    return Excluding(schedule, *_excluded(texts, zone), zone)


@lru_cache(maxsize=1024)
def _excluded(
    texts: tuple[str, ...], zone: ZoneInfo
) -> tuple[frozenset[int], Sequence[datetime], Sequence[datetime]]:
    """Weekdays, and starts and ends of stretches; jobs share their calendars."""
    exclusions = parse(texts)
    days = [(midnight(first, zone), _end_of(last, zone)) for first, last in exclusions.days]
    times = [(instant(start, zone), instant(end, zone)) for start, end in exclusions.times]
    stretches = list(_merged([*days, *times]))
    starts, ends = (tuple(each[i] for each in stretches) for i in (0, 1))
    return exclusions.weekdays, starts, ends


def _end_of(day: date, zone: ZoneInfo) -> datetime:
    return midnight(day + DAY, zone) if day < date.max else END_OF_CALENDAR


def _merged(stretches: Iterable[Stretch]) -> Iterable[Stretch]:
    merged: list[Stretch] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif start < end:
            merged.append((start, end))
    return merged
