"""What lies over a rule: bounds, exclusions, jitter, and the grid of `every`."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from supervisor.job.exclusions import parse
from supervisor.schedule.windows import HORIZON, Schedule, count_between, last_between
from supervisor.times import DAY, EPOCH, INSTANT, instant, midnight, reading


@dataclass(frozen=True, slots=True)
class Bounded:
    """The times of `schedule` from `start`, which is one if named, and before `end`."""

    schedule: Schedule
    start: datetime | None
    end: datetime | None

    def next_after(self, at: datetime) -> datetime | None:
        tick = self.schedule.next_after(self._from(at))
        return None if tick is None or (self.end and tick >= self.end) else tick

    def count(self, after: datetime, until: datetime) -> int:
        last = min(until, self.end - INSTANT) if self.end else until
        return count_between(self.schedule, self._from(after), last)

    def _from(self, at: datetime) -> datetime:
        return max(at, self.start - INSTANT) if self.start else at


# `exclude`: a schedule without the times that lie on excluded days.


END_OF_CALENDAR = datetime.max.replace(tzinfo=UTC)

Stretch = tuple[datetime, datetime]
"""From, inclusive, and to, exclusive."""


@dataclass(frozen=True, slots=True)
class Excluding:
    """starts, ends: of the excluded spans, which do not touch; weekdays are those of `zone`."""

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
        """The instants of each span between two exclusions."""
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
        """That many midnights later; where clocks go back over midnight, the second counts too."""
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
    """Weekdays, and starts and ends of spans; jobs share their calendars."""
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


# `every`: a grid over the Unix epoch in UTC, so that neither restarts nor clocks move it.


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


# `at`: a list of instants.


@dataclass(frozen=True, slots=True)
class Instants:
    """In order, none twice."""

    instants: tuple[datetime, ...]

    def next_after(self, at: datetime) -> datetime | None:
        index = bisect_right(self.instants, at)
        return self.instants[index] if index < len(self.instants) else None

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, bisect_right(self.instants, until) - bisect_right(self.instants, after))


# `jitter`: each tick is shifted by a constant of its own, and the shifted instant is the tick.
#
# The shift is a hash of the job's name and of the time that the schedule names, in whole seconds.
# It is shorter than the way to the next time, so ticks stay in order and none is lost. Beat,
# workers and `plan` compute the same instants without having to remember anything.
#
# That the shifted instant is the tick's identity keeps the rest simple: a tick is due at its
# nominal time, the watermark is the last nominal time dealt with, and both are read from one clock.


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
