"""The days of a recurrence rule, by dateutil, a year at a time.

dateutil goes through a rule from its beginning, which may be thousands of steps away. A rule
repeats itself, though: moved on by whole intervals it names the same days, so each year is asked
for alone.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import isleap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import lru_cache
from typing import Literal

from dateutil import rrule as dateutil

from supervisor.times.clock import DAY

FREQUENCIES: Mapping[str, Literal[0, 1, 2, 3]] = {
    "YEARLY": dateutil.YEARLY,
    "MONTHLY": dateutil.MONTHLY,
    "WEEKLY": dateutil.WEEKLY,
    "DAILY": dateutil.DAILY,
}


@dataclass(frozen=True, slots=True)
class Days:
    """The days of a rule; hashable, so that each year is computed once."""

    freq: str
    interval: int
    begin: date
    week_start: int
    months: tuple[int, ...]
    month_days: tuple[int, ...]
    year_days: tuple[int, ...]
    weeks: tuple[int, ...]
    weekdays: tuple[tuple[int, int | None], ...]
    positions: tuple[int, ...]

    def __contains__(self, day: date) -> bool:
        days = days_of(self, day.year)
        index = bisect_left(days, day)
        return index < len(days) and days[index] == day

    @property
    def years_a_period(self) -> int:
        """How many years an interval of the rule takes, rounded up."""
        days = {"YEARLY": 366, "MONTHLY": 31, "WEEKLY": 7, "DAILY": 1}[self.freq]
        return 1 + (days * self.interval - 1) // 366

    def first_period_of(self, year: int) -> date:
        """The beginning of a period of the rule from which all of the year is reached."""
        first = date(year, 1, 1)
        match self.freq:
            case "YEARLY":
                return first.replace(year=year + (self.begin.year - year) % self.interval)
            case "MONTHLY":
                months = (self.begin.year - year) * 12 + self.begin.month - 1
                years, month = divmod(months % self.interval, 12)
                return date(year + years, month + 1, 1)
            case "WEEKLY":
                week = self.begin - (self.begin.weekday() - self.week_start) % 7 * DAY
                return first - (first - week).days % (7 * self.interval) * DAY
            case _:
                return first - (first - self.begin).days % self.interval * DAY


@lru_cache(maxsize=8192)
def days_of(days: Days, year: int) -> Sequence[date]:
    if year < days.begin.year:
        return ()
    try:
        start, first = days.first_period_of(year), date(year, 1, 1)
    except ValueError:  # beyond the calendar
        return ()
    if start.year > year:
        return ()
    late = _late_year_like(year)
    start = date(late, 1, 1) + (start - first)
    found = dateutil.rrule(
        FREQUENCIES[days.freq],
        dtstart=datetime.combine(start, time()),
        interval=days.interval,
        wkst=days.week_start,
        until=datetime(late, 12, 31),
        bysetpos=days.positions or None,
        bymonth=days.months or None,
        bymonthday=days.month_days or None,
        byyearday=days.year_days or None,
        byweekno=days.weeks or None,
        byweekday=[dateutil.weekday(*weekday) for weekday in days.weekdays] or None,
        byhour=0,
        byminute=0,
        bysecond=0,
    )
    dates = (moment.date().replace(year=year) for moment in found if moment.year == late)
    return tuple(day for day in dates if day >= days.begin)


@lru_cache(maxsize=8192)
def _late_year_like(year: int) -> int:
    """One with the same calendar at the end of time.

    dateutil looks for the next day of a rule until the year 9999, whatever `until` says, and in a
    year without one it should not have far to go.
    """
    return next(late for late in range(9998, 9900, -1) if _kind(late) == _kind(year))


def _kind(year: int) -> tuple[int, bool, bool]:
    return date(year, 1, 1).weekday(), isleap(year), isleap(year - 1)
