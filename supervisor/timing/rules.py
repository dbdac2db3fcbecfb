"""`rrule` as a pattern of days and times of the day.

What the rule leaves open is taken from its beginning, as RFC 5545 says: `start_at`, or else an
anchor that is the same for all jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from supervisor.errors import InvalidSchedule
from supervisor.timing.protocol import HORIZON_YEARS
from supervisor.timing.rrule_fields import Rule
from supervisor.timing.rule_days import Days, days_of

#: Where rules without `start_at` begin: a Monday, the first of a month and of a year, at midnight.
ANCHOR = datetime(1990, 1, 1)

#: Seconds, and how many of them a day has.
UNITS = {"HOURLY": 3600, "MINUTELY": 60}
DAY_SECONDS = 24 * 3600

#: A rule that ends later by its COUNT has to be counted through at each start of a process.
YEARS_COUNTED = 100


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a day; `unit` and `interval` choose among them, counted from `begin`."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    unit: int
    interval: int
    begin: datetime

    def on(self, day: date) -> Sequence[int]:
        """Seconds since midnight."""
        midnight = (day.toordinal() - self.begin.toordinal()) * DAY_SECONDS // self.unit
        begin = (self.begin.hour * 3600 + self.begin.minute * 60) // self.unit
        return _times(
            self.hours,
            self.minutes,
            self.seconds,
            self.unit,
            self.interval,
            (midnight - begin) % self.interval,
        )


@lru_cache(maxsize=1024)
def _times(
    hours: tuple[int, ...],
    minutes: tuple[int, ...],
    seconds: tuple[int, ...],
    unit: int,
    interval: int,
    passed: int,
) -> Sequence[int]:
    """`passed`: how many units of the interval have passed at midnight."""
    starts = (hour * 3600 + minute * 60 for hour in hours for minute in minutes)
    chosen = (at for at in starts if (at // unit + passed) % interval == 0)
    return tuple(at + second for at in chosen for second in seconds)


@dataclass(frozen=True, slots=True)
class RulePattern:
    """`last`: the last time of the clock, for a rule that ends."""

    days: Days
    times: Times
    is_frequent: bool
    begin: datetime
    last: datetime | None = None

    def days_from(self, day: date) -> Iterator[date]:
        """Beginning with the first one from `day` on."""
        quiet_since = day.year
        last = self.last.date() if self.last else date.max
        for year in range(day.year, last.year + 1):
            days = days_of(self.days, year)
            for found in days[bisect_left(days, day) : bisect_right(days, last)]:
                if self.times_on(found):
                    quiet_since = year
                    yield found
            if year - quiet_since > self.quiet_years:
                return

    def times_on(self, day: date) -> Sequence[int]:
        if day not in self.days or (self.last and day > self.last.date()):
            return ()
        times = self.times.on(day)
        if self.last and day == self.last.date():
            times = times[: bisect_right(times, _second_of_day(self.last))]
        if day == self.begin.date():
            times = times[bisect_left(times, _second_of_day(self.begin)) :]
        return times

    @property
    def quiet_years(self) -> int:
        """Who has found nothing for so long does not look further."""
        return HORIZON_YEARS * self.days.years_a_period


def _second_of_day(moment: datetime) -> float:
    return moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6


def rule_pattern(rule: Rule, start: datetime | None, zone: ZoneInfo) -> RulePattern:
    """The pattern of a rule that begins at `start`. Raises InvalidSchedule."""
    if start is None and (part := rule.needs_a_start):
        raise InvalidSchedule(f"{part} needs 'start_at', the time from which it counts")
    begin = start.astimezone(zone).replace(tzinfo=None, microsecond=0) if start else ANCHOR
    pattern = RulePattern(_days_in(rule, begin), _times_of(rule, begin), _is_frequent(rule), begin)
    if next(pattern.days_from(begin.date()), None) is None:
        raise InvalidSchedule("it never comes true: there is no such day")
    last = _last(rule, pattern, zone)
    return RulePattern(pattern.days, pattern.times, pattern.is_frequent, begin, last)


def _days_in(rule: Rule, begin: datetime) -> Days:
    days_given = (
        any(rule[part] for part in ("BYMONTHDAY", "BYYEARDAY", "BYWEEKNO")) or rule.weekdays
    )
    months, month_days, weekdays = rule["BYMONTH"], rule["BYMONTHDAY"], rule.weekdays
    if not days_given and rule.freq in ("YEARLY", "MONTHLY"):
        month_days = (begin.day,)
        months = months or ((begin.month,) if rule.freq == "YEARLY" else ())
    by_week = rule["BYWEEKNO"] and not (weekdays or month_days or rule["BYYEARDAY"])
    if by_week or (not days_given and rule.freq == "WEEKLY"):
        weekdays = ((begin.weekday(), None),)
    within = rule.is_within_days
    return Days(
        freq="DAILY" if within else rule.freq,
        interval=1 if within else rule.interval,
        begin=begin.date(),
        week_start=rule.week_start,
        months=months,
        month_days=month_days,
        year_days=rule["BYYEARDAY"],
        weeks=rule["BYWEEKNO"],
        weekdays=all_numbered(weekdays, within="MONTHLY" if months else rule.freq),
        positions=rule["BYSETPOS"],
    )


def all_numbered(
    weekdays: tuple[tuple[int, int | None], ...], *, within: str
) -> tuple[tuple[int, int | None], ...]:
    """Days of which some have a number and some have none, each with all its numbers.

    Any of them is meant; dateutil takes the days that are in both kinds, and fails for a number
    that no month has. within: "MONTHLY" or "YEARLY", in which the days are counted.
    """
    most = 5 if within == "MONTHLY" else 53
    known = tuple((day, n) for day, n in weekdays if n is None or abs(n) <= most)
    if weekdays and not known:
        raise InvalidSchedule("it never comes true: no month has so many of a day")
    if within not in ("MONTHLY", "YEARLY") or len({n is None for _, n in known}) < 2:
        return known
    plain = {day for day, number in known if number is None}
    kept = [(day, number) for day, number in known if day not in plain]
    return (*((day, n) for day in sorted(plain) for n in range(1, most + 1)), *kept)


def _times_of(rule: Rule, begin: datetime) -> Times:
    every_hour, every_minute = tuple(range(24)), tuple(range(60))
    return Times(
        hours=rule["BYHOUR"] or (every_hour if rule.is_within_days else (begin.hour,)),
        minutes=rule["BYMINUTE"] or (every_minute if rule.freq == "MINUTELY" else (begin.minute,)),
        seconds=rule["BYSECOND"] or (begin.second,),
        unit=UNITS.get(rule.freq, 1),
        interval=rule.interval if rule.is_within_days else 1,
        begin=begin,
    )


def _is_frequent(rule: Rule) -> bool:
    """Whether every hour of its days has a time."""
    if len(rule["BYHOUR"]) not in (0, 24) or rule["BYSETPOS"]:
        return False
    if rule.freq == "MINUTELY":
        return rule.interval == 1 or (rule.interval <= 60 and not rule["BYMINUTE"])
    if rule.freq == "HOURLY":
        return rule.interval == 1
    return len(rule["BYHOUR"]) == 24


def _last(rule: Rule, pattern: RulePattern, zone: ZoneInfo) -> datetime | None:
    if isinstance(rule.until, datetime):
        is_local = rule.until.tzinfo is None
        return rule.until if is_local else rule.until.astimezone(zone).replace(tzinfo=None)
    if rule.until is not None:
        return datetime.combine(rule.until, time.max)
    if rule.count is None:
        return None
    left = rule.count
    with suppress(OverflowError):
        for day in pattern.days_from(pattern.begin.date()):
            if day.year - pattern.begin.year > YEARS_COUNTED * pattern.days.years_a_period:
                raise InvalidSchedule(
                    f"COUNT: {rule.count:,} is reached after more than {YEARS_COUNTED} years; "
                    "leave it out, or write UNTIL"
                )
            times = pattern.times_on(day)
            if left <= len(times):
                return datetime.combine(day, time()) + timedelta(seconds=times[left - 1])
            left -= len(times)
    return None
