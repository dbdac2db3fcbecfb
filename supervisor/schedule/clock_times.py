"""Local times -> instants, through the days on which clocks change.

- A pattern that names every hour is *frequent*: it fires whenever the clock matches, so its ticks
  keep their distance in real time: what the clock jumps over does not exist, both copies count.
- Any other is *fixed*, and `dst` decides. As a rule, times that the clock jumps over collapse into
  one tick at the end of the gap, and of a repeated hour the first copy counts.
- Of several patterns that are joined, each is frequent or fixed by itself. An instant that several
  name counts once.
- A gap of more than three hours is no daylight saving but a zone that changed sides of the date
  line: what lay in it does not exist.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache, partial
from heapq import merge
from itertools import takewhile
from operator import ge
from typing import Protocol
from zoneinfo import ZoneInfo

from supervisor.job.fields import ClockChanges, Fold, Gap
from supervisor.times import DAY, INSTANT, Reading, is_plain, midnight, reading

#: A search that finds no time for this long ends: longer than any calendar's cycle of leap days and
#: weekdays.
HORIZON_YEARS = 50
HORIZON = timedelta(days=366 * HORIZON_YEARS)

SECOND = timedelta(seconds=1)
LONGEST_DST_GAP = timedelta(hours=3)

AS_A_RULE = ClockChanges()

#: Whenever the local time matches.
FREQUENT = ClockChanges(gap=Gap.SKIP, fold=Fold.BOTH)


class Pattern(Protocol):
    """Times of a clock that never changes."""

    @property
    def is_frequent(self) -> bool:
        """Whether every hour of a day has a time."""
        ...

    def days_from(self, day: date) -> Iterator[date]:
        """The days with times, in order; ends when there is none for very long."""
        ...

    def times_on(self, day: date) -> Sequence[int]:
        """Seconds since midnight, in order; none on a day without times."""
        ...


@dataclass(frozen=True, slots=True)
class ClockTimes:
    """A pattern in a zone."""

    pattern: Pattern
    zone: ZoneInfo
    fixed: ClockChanges = AS_A_RULE

    @property
    def changes(self) -> ClockChanges:
        return FREQUENT if self.pattern.is_frequent else self.fixed

    def next_after(self, at: datetime) -> datetime | None:
        return next(self.ticks_after(at), None)

    def ticks_after(self, at: datetime) -> Iterator[datetime]:
        """All nominal times after `at`, each once and in order."""
        last, changes = at, self.changes
        second_copies: deque[datetime] = deque()
        with suppress(OverflowError):  # the end of the calendar
            for local in self._local_times_after(self._earliest_local_time(at)):
                shown = reading(local, self.zone)
                while second_copies and second_copies[0] < shown.first:
                    if (tick := second_copies.popleft()) > last:
                        yield (last := tick)
                if shown.second > shown.first and changes.fold is Fold.BOTH:
                    second_copies.append(shown.second)
                if _counts(shown, changes) and (tick := _chosen(shown, changes)) > last:
                    yield (last := tick)
        yield from (tick for tick in second_copies if tick > last)

    def count(self, after: datetime, until: datetime) -> int:
        return count_by_days(self, after, until)

    def times_on(self, day: date) -> Sequence[int]:
        """Seconds since midnight, in order, on a day without a clock change."""
        return self.pattern.times_on(day)

    def _earliest_local_time(self, at: datetime) -> datetime:
        """What the clock shows at `at`; before a repeated hour, what it shows in its second copy.

        The second copies of what came before `at` in the first are still to come.
        """
        shown = (moment.astimezone(self.zone).replace(tzinfo=None) for moment in (at, at + DAY))
        now, tomorrow = shown
        return min(now, tomorrow - DAY)

    def _local_times_after(self, local: datetime) -> Iterator[datetime]:
        today = datetime.combine(local.date(), time())
        for day in self.pattern.days_from(today.date()):
            start, times = datetime.combine(day, time()), self.pattern.times_on(day)
            first = bisect_right(times, (local - today) // SECOND) if start == today else 0
            for index in range(first, len(times)):
                yield start + times[index] * SECOND


@dataclass(frozen=True, slots=True)
class JoinedTimes:
    """The times of several patterns in one zone."""

    parts: tuple[ClockTimes, ...]

    @property
    def zone(self) -> ZoneInfo:
        return self.parts[0].zone

    def next_after(self, at: datetime) -> datetime | None:
        ticks = (part.next_after(at) for part in self.parts)
        return min((tick for tick in ticks if tick is not None), default=None)

    def ticks_after(self, at: datetime) -> Iterator[datetime]:
        """All nominal times after `at`, each once and in order."""
        last = at
        for tick in merge(*(part.ticks_after(at) for part in self.parts)):
            if tick > last:
                yield (last := tick)

    def count(self, after: datetime, until: datetime) -> int:
        return count_by_days(self, after, until)

    def times_on(self, day: date) -> Sequence[int]:
        """Seconds since midnight, in order, on a day without a clock change."""
        each = (part.times_on(day) for part in self.parts)
        return joined(tuple(tuple(times) for times in each if times))


@lru_cache(maxsize=128)
def joined(times: tuple[Sequence[int], ...]) -> Sequence[int]:
    """The times in order, each once. Most days have the same times as others."""
    return times[0] if len(times) == 1 else tuple(sorted(set().union(*times)))


def count_by_days(times: ClockTimes | JoinedTimes, after: datetime, until: datetime) -> int:
    """How many lie in (after, until]: only days with a clock change are walked through."""
    count = 0
    for day, start, end in _days(after, until, times.zone):
        if is_plain(start, end, times.zone):
            on_day = times.times_on(day)
            before = bisect_right(on_day, (after - start) // SECOND) if after >= start else 0
            count += bisect_right(on_day, (until - start) // SECOND) - before
        else:
            first, last = max(after, start - INSTANT), min(until, end - INSTANT)
            count += sum(1 for _ in takewhile(partial(ge, last), times.ticks_after(first)))
    return count


def _days(
    after: datetime, until: datetime, zone: ZoneInfo
) -> Iterator[tuple[date, datetime, datetime]]:
    """The local days that touch (after, until], each as (day, start, end)."""
    # A day more: where clocks go back at midnight, `until` may be in the date's second coming.
    day = after.astimezone(zone).date()
    last = until.astimezone(zone).date() + DAY
    start = midnight(day, zone)
    while day <= last and start <= until:
        end = midnight(day + DAY, zone)
        if end > after:
            yield day, start, end
        day, start = day + DAY, end


def _counts(shown: Reading, changes: ClockChanges) -> bool:
    """Whether a time that the clock jumps over is made up for; any other counts."""
    return not shown.gap or (changes.gap is Gap.RUN and shown.gap <= LONGEST_DST_GAP)


def _chosen(shown: Reading, changes: ClockChanges) -> datetime:
    return shown.second if changes.fold is Fold.SECOND and not shown.gap else shown.first
