"""Recurrence rules of RFC 5545: dateutil knows their days, and is asked for a year at a time.

What a rule leaves open is taken from its beginning: `start_at`, or else an anchor that is the same
for all jobs. dateutil walks through a rule from its beginning, and looks for a next day until the
year 9999. So it is asked from the last interval before a year, and for a year at the end of time
that has the same calendar: an answer takes milliseconds, for any rule and any year.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import lru_cache
from itertools import product
from math import prod
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from supervisor.errors import InvalidSchedule, did_you_mean
from supervisor.schedule.clock_times import HORIZON_YEARS
from supervisor.times import DAY

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
DAYS = ("BYMONTH", "BYMONTHDAY", "BYDAY", "BYSETPOS")
CLOCK = ("BYHOUR", "BYMINUTE", "BYSECOND")
PARTS = ("FREQ", "INTERVAL", "WKST", *DAYS, *CLOCK)

#: What other programs have in a rule or beside it.
INSTEAD = "for DTSTART use 'start_at', for UNTIL and COUNT 'end_at', for EXDATE 'exclude'"

#: Of parts that are numbers, the smallest and the largest; True if they may count from the end.
NUMBERS = {
    "INTERVAL": (1, 1_000, False),
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}

#: Where rules without `start_at` begin: a Monday, the first of a month and of a year, at midnight.
ANCHOR = datetime(1990, 1, 1)

Rule = Mapping[str, str]
"""Part -> its value; INTERVAL and WKST are always there."""


def parse(text: str) -> Rule:
    """Raises InvalidSchedule."""
    given: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").rstrip(";").split(";"):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in PARTS:
            hint = did_you_mean(name, PARTS, 0.75) or f"; {INSTEAD}"
            raise InvalidSchedule(f"{part!r} is not a part such as FREQ=WEEKLY{hint}")
        if name in given:
            raise InvalidSchedule(f"{name} is given twice")
        given[name] = value
        for item in value.split(",") if name in NUMBERS else ():
            _check_number(name, item)
    if (freq := given.get("FREQ", "")) not in FREQUENCIES:
        what = f"FREQ: {freq!r} is not one of" if freq else "FREQ is missing; it is one of"
        names = ", ".join(FREQUENCIES)
        raise InvalidSchedule(f"{what} {names}; for hours and minutes use 'every' or 'cron'")
    rule = {"INTERVAL": "1", "WKST": "MO", **given}
    try:
        rrulestr(text_of(rule))
    except ValueError as error:
        raise InvalidSchedule(str(error)) from None
    _check_together(rule)
    return rule


def _check_number(part: str, item: str) -> None:
    smallest, largest, is_signed = NUMBERS[part]
    number = int(item) if re.fullmatch(r"[+-]?[0-9]{1,6}", item) else largest + 1
    if not smallest <= (abs(number) if is_signed else number) <= largest:
        also = f" or -{largest} to -1" if is_signed else ""
        what = f"is not a number from {smallest:,} to {largest:,}{also}"
        raise InvalidSchedule(f"{part}: {item!r} {what}")


def _check_together(rule: Rule) -> None:
    """Checks what RFC 5545 forbids, and what dateutil reads in another way."""
    days = rule.get("BYDAY", "").split(",")
    numbers = [int(digits) for digits in re.findall("[0-9]+", rule.get("BYDAY", ""))]
    most = {"YEARLY": 5 if "BYMONTH" in rule else 53, "MONTHLY": 5}.get(rule["FREQ"], 0)
    if 0 < len(numbers) < len(days):
        raise InvalidSchedule("BYDAY: give all days a number, or none")
    if max(numbers, default=0) > most:
        raise InvalidSchedule("BYDAY: numbers count in a month (up to 5) or a year (up to 53)")
    if "BYSETPOS" in rule and any("," in rule.get(part, "") for part in CLOCK):
        raise InvalidSchedule("BYSETPOS goes with one time of the day only")


def text_of(rule: Rule) -> str:
    return ";".join(f"{part}={value}" for part, value in rule.items())


def numbers_of(rule: Rule, part: str) -> tuple[int, ...]:
    """The numbers of a part, in order; none of one that the rule does not have."""
    return tuple(sorted({int(item) for item in rule[part].split(",")})) if part in rule else ()


def times_a_day(rule: Rule) -> int:
    return prod(len(numbers_of(rule, part)) or 1 for part in CLOCK)


@dataclass(frozen=True, slots=True)
class RulePattern:
    """The days of a rule, and the times at which it fires on each."""

    days: str
    """A rule of them alone."""

    begin: date
    """The day from which intervals count."""

    times: Sequence[int]
    """In seconds since midnight, in order."""

    is_frequent: bool
    """Whether every hour of its days has a time."""

    def days_from(self, day: date) -> Iterator[date]:
        """Beginning with the first one from `day` on."""
        quiet_since = day.year
        for year in range(day.year, date.max.year + 1):
            for later in days_of(self, year):
                if later >= day:
                    quiet_since = year
                    yield later
            if year - quiet_since > HORIZON_YEARS:
                return

    def times_on(self, day: date) -> Sequence[int]:
        return self.times if day in days_of(self, day.year) else ()


@lru_cache(maxsize=4096)
def days_of(pattern: RulePattern, year: int) -> Mapping[date, None]:
    """The days of a rule in a year, in order."""
    start, first = _interval_before(pattern, year), date(year, 1, 1)
    if start is None:
        return {}
    late = next(late for late in range(9998, 9900, -1) if _calendar(late) == _calendar(year))
    moved = datetime.combine(date(late, 1, 1) + (start - first), time())
    moments = rrulestr(f"{pattern.days};UNTIL={late}1231T000000", dtstart=moved)
    return {moment.date().replace(year=year): None for moment in moments if moment.year == late}


def _calendar(year: int) -> tuple[int, bool]:
    return date(year, 1, 1).weekday(), isleap(year)


def _interval_before(pattern: RulePattern, year: int) -> date | None:
    """The beginning of an interval from which all of the year is reached; None if none is."""
    rule = dict(part.split("=") for part in pattern.days.split(";"))
    first, begin, step = date(year, 1, 1), pattern.begin, int(rule["INTERVAL"])
    if rule["FREQ"] == "YEARLY":
        return None if (year - begin.year) % step else first
    if rule["FREQ"] == "MONTHLY":
        ahead = (12 * (begin.year - year) + begin.month - 1) % step
        return date(year, ahead + 1, 1) if ahead < 12 else None
    if rule["FREQ"] == "WEEKLY":
        begin, step = begin - (begin.weekday() - WEEKDAYS.index(rule["WKST"])) % 7 * DAY, 7 * step
    return first - (first - begin).days % step * DAY


def rule_pattern(rule: Rule, start: datetime | None, zone: ZoneInfo) -> RulePattern:
    """The pattern of a rule that begins at `start`. Raises InvalidSchedule."""
    if start is None and int(rule["INTERVAL"]) > 1:
        raise InvalidSchedule("INTERVAL needs 'start_at', the time from which it counts")
    begin = start.astimezone(zone) if start else ANCHOR
    days = {part: rule[part] for part in DAYS if part in rule}
    if not days.keys() - {"BYMONTH", "BYSETPOS"}:
        month, day, weekday = str(begin.month), str(begin.day), WEEKDAYS[begin.weekday()]
        left_open = {
            "YEARLY": {"BYMONTH": month, "BYMONTHDAY": day},
            "MONTHLY": {"BYMONTHDAY": day},
            "WEEKLY": {"BYDAY": weekday},
        }
        days = {**left_open.get(rule["FREQ"], {}), **days}
    days |= {part: rule[part] for part in ("FREQ", "INTERVAL", "WKST")}
    hours, minutes, seconds = (
        numbers_of(rule, part) or (at,)
        for part, at in zip(CLOCK, begin.timetuple()[3:6], strict=True)
    )
    times = tuple(3600 * h + 60 * m + s for h, m, s in product(hours, minutes, seconds))
    pattern = RulePattern(text_of(days), begin.date(), times, is_frequent=len(hours) == 24)
    if next(pattern.days_from(pattern.begin), None) is None:
        raise InvalidSchedule("it never fires: there is no such day")
    return pattern
