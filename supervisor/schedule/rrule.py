"""Recurrence rules of RFC 5545: checked part by part, then their nominal times."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from dateutil import rrule as dateutil

from supervisor.errors import InvalidSchedule, did_you_mean
from supervisor.schedule.clock_times import HORIZON_YEARS
from supervisor.times import DAY

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

#: Part -> the largest number, whether it may be counted from the end, and so be negative.
NUMBERS = {
    "BYMONTH": (12, False),
    "BYMONTHDAY": (31, True),
    "BYYEARDAY": (366, True),
    "BYWEEKNO": (53, True),
    "BYHOUR": (23, False),
    "BYMINUTE": (59, False),
    "BYSECOND": (59, False),
    "BYSETPOS": (366, True),
}
PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *NUMBERS)

FROM_ZERO = ("BYHOUR", "BYMINUTE", "BYSECOND")
MOST = {"INTERVAL": 10_000, "COUNT": 100_000}


@dataclass(frozen=True, slots=True)
class Rule:
    """The parts of a rule that were given; `numbers` are those of the BY... parts, in order.

    weekdays: Monday is 0, with its number in month or year, or None. until: the last date, or the
    last time by the job's clock, or with a zone.
    """

    freq: str
    interval: int = 1
    count: int | None = None
    until: date | datetime | None = None
    week_start: int = 0
    weekdays: tuple[tuple[int, int | None], ...] = ()
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __getitem__(self, part: str) -> tuple[int, ...]:
        return self.numbers.get(part, ())

    @property
    def is_within_days(self) -> bool:
        return self.freq in ("HOURLY", "MINUTELY")

    @property
    def needs_a_start(self) -> str | None:
        """The part that says nothing without a beginning to count from."""
        if self.interval > 1:
            return "INTERVAL"
        return "COUNT" if self.count is not None else None


def parse(text: str) -> Rule:
    """Raises InvalidSchedule."""
    if match := re.search(r"DTSTART|EXDATE|RDATE|EXRULE|\n", text.strip(), re.IGNORECASE):
        instead = {"DTSTART": "'start_at'", "EXDATE": "'exclude'", "RDATE": "a job with 'at'"}
        name = match[0].upper().strip()
        use = f"; for {name} use {instead[name]}" if name in instead else ""
        raise InvalidSchedule(f"{text!r} is more than one rule{use}")
    parts = _split(text)
    rule = Rule(
        freq=_word("FREQ", parts["FREQ"], FREQUENCIES),
        interval=_count("INTERVAL", parts) or 1,
        count=_count("COUNT", parts),
        until=_until(parts["UNTIL"]) if "UNTIL" in parts else None,
        week_start=WEEKDAYS.index(_word("WKST", parts.get("WKST", "MO"), WEEKDAYS)),
        weekdays=weekdays_of(parts["BYDAY"]) if "BYDAY" in parts else (),
        numbers={name: _numbers(name, parts[name]) for name in NUMBERS if name in parts},
    )
    _check_together(rule)
    return rule


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").rstrip(";").split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InvalidSchedule(f"{part!r} is not a part such as FREQ=WEEKLY")
        if name not in PARTS:
            hint = did_you_mean(name, PARTS)
            raise InvalidSchedule(f"{name} is not a part of a rule{hint}")
        if name in parts:
            raise InvalidSchedule(f"{name} is given twice")
        parts[name] = value
    if parts.get("FREQ") == "SECONDLY":
        raise InvalidSchedule("FREQ=SECONDLY is not supported; use 'every' (every: 30s)")
    if "FREQ" not in parts:
        raise InvalidSchedule("FREQ is missing; a rule begins with FREQ=DAILY or the like")
    if "COUNT" in parts and "UNTIL" in parts:
        raise InvalidSchedule("COUNT and UNTIL exclude each other")
    return parts


def _word(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        hint = did_you_mean(value, known)
        raise InvalidSchedule(f"{name}: {value!r} is not one of {', '.join(known)}{hint}")
    return value


def _count(name: str, parts: dict[str, str]) -> int | None:
    if name not in parts:
        return None
    value, most = parts[name], MOST[name]
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= most:
        raise InvalidSchedule(f"{name}: {value!r} is not a number from 1 to {most:,}")
    return int(value)


def _numbers(name: str, value: str) -> tuple[int, ...]:
    largest, signed = NUMBERS[name]
    smallest = 0 if name in FROM_ZERO else 1
    found = set()
    for text in value.split(","):
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,3}", text) else largest + 1
        if not smallest <= (abs(number) if signed else number) <= largest:
            also = f" or -{largest} to -1" if signed else ""
            raise InvalidSchedule(
                f"{name}: {text!r} is not a number from {smallest} to {largest}{also}"
            )
        found.add(number)
    return tuple(sorted(found))


def weekdays_of(value: str) -> tuple[tuple[int, int | None], ...]:
    """`MO,2TU,-1FR` -> days from Monday, which is 0, with their numbers. Raises InvalidSchedule."""
    found: dict[tuple[int, int | None], None] = {}
    for text in value.split(","):
        match = re.fullmatch(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)", text)
        number = int(match[1]) if match and match[1] else None
        if not match or number == 0 or (number and abs(number) > 53):
            days = ", ".join(WEEKDAYS)
            raise InvalidSchedule(f"BYDAY: {text!r} is not one of {days}, or such as 2TU or -1FR")
        found[WEEKDAYS.index(match[2]), number] = None
    return tuple(found)


def _until(value: str) -> date | datetime:
    form = r"\d{8}(T\d{6}Z?)?"
    try:
        if re.fullmatch(form, value):
            moment = datetime.fromisoformat(value)
            return moment if "T" in value else moment.date()
    except ValueError:
        pass
    raise InvalidSchedule(f"UNTIL: {value!r} is not a date such as 20261231 or 20261231T180000Z")


def _check_together(rule: Rule) -> None:
    """Checks what RFC 5545 does not allow, and the one thing that is not supported."""
    numbered = any(number is not None for _, number in rule.weekdays)
    others = [
        part for part in ("BYDAY", *NUMBERS) if rule[part] or (part == "BYDAY" and rule.weekdays)
    ]
    wrong = {
        "BYWEEKNO goes with FREQ=YEARLY only": rule["BYWEEKNO"] and rule.freq != "YEARLY",
        "BYYEARDAY does not go with DAILY, WEEKLY and MONTHLY": rule["BYYEARDAY"]
        and rule.freq in ("DAILY", "WEEKLY", "MONTHLY"),
        "BYMONTHDAY does not go with WEEKLY": rule["BYMONTHDAY"] and rule.freq == "WEEKLY",
        "BYDAY with a number goes with MONTHLY and YEARLY only": numbered
        and rule.freq not in ("MONTHLY", "YEARLY"),
        "BYDAY with a number does not go with BYWEEKNO": numbered and rule["BYWEEKNO"],
        "BYSETPOS needs another BY... part to choose from": rule["BYSETPOS"] and len(others) == 1,
        "BYSETPOS does not go with HOURLY and MINUTELY": rule["BYSETPOS"] and rule.is_within_days,
        "BYSETPOS goes with one time of the day only": rule["BYSETPOS"]
        and any(len(rule[part]) > 1 for part in FROM_ZERO),
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidSchedule(text)


# The days of a recurrence rule, by dateutil, a year at a time.
#
# dateutil goes through a rule from its beginning, which may be thousands of steps back. A rule
# repeats itself, though: moved on by whole intervals it names the same days, so each year is asked
# for alone.


@dataclass(frozen=True, slots=True)
class Days:
    """Days of a rule; hashable, so that each year is computed once. by: dateutil's arguments."""

    freq: str
    interval: int
    begin: date
    week_start: int
    by: tuple[tuple[str, tuple[Any, ...]], ...]

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

    def have_none_between(self, start: date, first: date) -> bool:
        """Whether the period from `start` ends before a year begins, and the next comes after it.

        dateutil would find that out as well, but takes a millisecond for it.
        """
        length = {"WEEKLY": 7, "DAILY": 1}.get(self.freq)
        if length is None or (first - start).days < length:
            return False
        return (first.replace(month=12, day=31) - start).days < length * self.interval


@lru_cache(maxsize=8192)
def days_of(days: Days, year: int) -> Sequence[date]:
    if year < days.begin.year:
        return ()
    try:
        start, first = days.first_period_of(year), date(year, 1, 1)
    except ValueError:  # beyond the calendar
        return ()
    if start.year > year or days.have_none_between(start, first):
        return ()
    by: dict[str, Any] = dict(days.by)
    late = _late_year_like(year)
    start = date(late, 1, 1) + (start - first)
    found = dateutil.rrule(
        getattr(dateutil, days.freq),
        dtstart=datetime.combine(start, time()),
        interval=days.interval,
        wkst=days.week_start,
        until=datetime(late, 12, 31),
        byhour=0,
        byminute=0,
        bysecond=0,
        **by,
    )
    dates = (moment.date().replace(year=year) for moment in found if moment.year == late)
    return tuple(day for day in dates if day >= days.begin)


@lru_cache(maxsize=8192)
def _late_year_like(year: int) -> int:
    """A year with the same calendar at the end of time.

    dateutil looks for the next day of a rule until the year 9999, whatever `until` says, and in a
    year without one it should not have far to go.
    """
    return next(late for late in range(9998, 9900, -1) if _kind(late) == _kind(year))


def _kind(year: int) -> tuple[int, bool, bool]:
    return date(year, 1, 1).weekday(), isleap(year), isleap(year - 1)


# `rrule` as a pattern of days and times of the day.
#
# What the rule leaves open is taken from its beginning, as RFC 5545 says: `start_at`, or else an
# anchor that is the same for all jobs.


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
        return _times(self, (midnight - begin) % self.interval)


@lru_cache(maxsize=1024)
def _times(times: Times, passed: int) -> Sequence[int]:
    """`passed`: how many units of the interval have passed at midnight."""
    starts = (hour * 3600 + minute * 60 for hour in times.hours for minute in times.minutes)
    chosen = (at for at in starts if (at // times.unit + passed) % times.interval == 0)
    return tuple(at + second for at in chosen for second in times.seconds)


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
            if year - quiet_since > HORIZON_YEARS * self.days.years_a_period:
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


def _second_of_day(moment: datetime) -> float:
    return moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6


def rule_pattern(rule: Rule, start: datetime | None, zone: ZoneInfo) -> RulePattern:
    """The pattern of a rule that begins at `start`. Raises InvalidSchedule."""
    if start is None and (part := rule.needs_a_start):
        raise InvalidSchedule(f"{part} needs 'start_at', the time from which it counts")
    begin = start.astimezone(zone).replace(tzinfo=None, microsecond=0) if start else ANCHOR
    pattern = RulePattern(_days_in(rule, begin), _times_of(rule, begin), _is_frequent(rule), begin)
    if next(pattern.days_from(begin.date()), None) is None:
        raise InvalidSchedule("it never fires: there is no such day")
    return replace(pattern, last=_last(rule, pattern, zone))


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
    weekdays = all_numbered(weekdays, within="MONTHLY" if months else rule.freq)
    by: dict[str, tuple[Any, ...]] = {
        "bymonth": months,
        "bymonthday": month_days,
        "byyearday": rule["BYYEARDAY"],
        "byweekno": rule["BYWEEKNO"],
        "byweekday": tuple(dateutil.weekday(*weekday) for weekday in weekdays),
        "bysetpos": rule["BYSETPOS"],
    }
    within = rule.is_within_days
    return Days(
        freq="DAILY" if within else rule.freq,
        interval=1 if within else rule.interval,
        begin=begin.date(),
        week_start=rule.week_start,
        by=tuple((name, values) for name, values in by.items() if values),
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
        raise InvalidSchedule("it never fires: no month has that many of a weekday")
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
