"""Recurrence rules of RFC 5545: dateutil knows their days, and is asked for a year at a time.

What a rule leaves open is taken from its beginning: `start_at`, or else an anchor that is the same
for all jobs. dateutil walks through a rule from its beginning, and looks for a next day until the
year 9999. So it is asked from the last interval before a year, and for a year at the end of time
that has the same calendar: an answer takes milliseconds, for any rule and any year.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from functools import lru_cache
from itertools import product
from math import prod
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from supervisor.errors import InvalidSchedule, did_you_mean
from supervisor.schedule.clock_times import HORIZON_YEARS, SECOND
from supervisor.times import DAY

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
DAYS = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY", "BYSETPOS")
CLOCK = ("BYHOUR", "BYMINUTE", "BYSECOND")
PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", *DAYS, *CLOCK)

#: Of parts that are numbers, the smallest and the largest; True if they may count from the end.
NUMBERS = {
    "INTERVAL": (1, 1_000, False),
    "COUNT": (1, 10_000, False),
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}

#: Where rules without `start_at` begin: a Monday, the first of a month and of a year, at midnight.
ANCHOR = datetime(1990, 1, 1)

#: A rule that ends later by its COUNT has to be counted through at each start of a process.
YEARS_COUNTED = 100

#: What HOURLY and MINUTELY mean as rules of days.
HOURS, MINUTES = (",".join(map(str, range(most))) for most in (24, 60))
ALWAYS = {"HOURLY": {"BYHOUR": HOURS}, "MINUTELY": {"BYHOUR": HOURS, "BYMINUTE": MINUTES}}

Rule = Mapping[str, str]
"""Part -> its value; INTERVAL and WKST are always there. HOURLY and MINUTELY have become DAILY."""


def parse(text: str) -> Rule:
    """Raises InvalidSchedule."""
    given: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").rstrip(";").split(";"):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in PARTS:
            use = "; for DTSTART use 'start_at', for EXDATE 'exclude', for RDATE a job with 'at'"
            hint = use if re.search("DTSTART|DATE", name) else did_you_mean(name, PARTS)
            raise InvalidSchedule(f"{part!r} is not a part such as FREQ=WEEKLY{hint}")
        if name in given:
            raise InvalidSchedule(f"{name} is given twice")
        given[name] = value
        for item in value.split(",") if name in NUMBERS else ():
            _check_number(name, item)
    if (freq := given.get("FREQ", "")) not in FREQUENCIES:
        if freq == "SECONDLY":
            raise InvalidSchedule("FREQ=SECONDLY is not supported; use 'every' (every: 30s)")
        what = f"FREQ: {freq!r} is not one of" if freq else "FREQ is missing; it is one of"
        raise InvalidSchedule(f"{what} {', '.join(FREQUENCIES)}")
    rule = {"INTERVAL": "1", "WKST": "MO", **ALWAYS.get(freq, {}), **given}
    rule["FREQ"] = "DAILY" if freq in ALWAYS else freq
    try:
        rrulestr(text_of({part: rule[part] for part in rule if part != "UNTIL"}))
        _until(rule, ZoneInfo("UTC"))
    except ValueError as error:
        raise InvalidSchedule(str(error)) from None
    _check_together(rule, freq)
    return rule


def _check_number(part: str, item: str) -> None:
    smallest, largest, is_signed = NUMBERS[part]
    number = int(item) if re.fullmatch(r"[+-]?[0-9]{1,6}", item) else largest + 1
    if not smallest <= (abs(number) if is_signed else number) <= largest:
        also = f" or -{largest} to -1" if is_signed else ""
        what = f"is not a number from {smallest:,} to {largest:,}{also}"
        raise InvalidSchedule(f"{part}: {item!r} {what}")


def _check_together(rule: Rule, freq: str) -> None:
    """Checks what RFC 5545 forbids, and what dateutil reads in another way."""
    days = rule.get("BYDAY", "").split(",")
    numbers = [abs(int(found[0])) for day in days if (found := re.search(r"[+-]?\d+", day))]
    most = 53 if freq == "YEARLY" and "BYMONTH" not in rule else 5
    wrong = {
        "COUNT and UNTIL exclude each other": {"COUNT", "UNTIL"} <= rule.keys(),
        f"INTERVAL does not go with {freq}; use 'every' (every: 2h)": int(rule["INTERVAL"]) > 1
        and freq in ALWAYS,
        "BYWEEKNO goes with YEARLY and BYDAY only": "BYWEEKNO" in rule
        and (freq != "YEARLY" or "BYDAY" not in rule),
        "BYDAY: give all days a number, or none": 0 < len(numbers) < len(days),
        "BYDAY with a number goes with MONTHLY, and with YEARLY without BYWEEKNO": numbers
        and (freq not in ("YEARLY", "MONTHLY") or "BYWEEKNO" in rule),
        f"BYDAY: there are no more than {most} of a weekday": max(numbers, default=0) > most,
        "BYSETPOS goes with one time of the day only": "BYSETPOS" in rule
        and any("," in rule.get(part, "") for part in CLOCK),
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidSchedule(text)


def text_of(rule: Rule) -> str:
    return ";".join(f"{part}={value}" for part, value in rule.items())


def numbers_of(rule: Rule, part: str) -> tuple[int, ...]:
    """The numbers of a part, in order; none of one that the rule does not have."""
    return tuple(sorted({int(item) for item in rule[part].split(",")})) if part in rule else ()


def times_a_day(rule: Rule) -> int:
    return prod(len(numbers_of(rule, part)) or 1 for part in CLOCK)


@dataclass(frozen=True, slots=True)
class RulePattern:
    """The days of a rule, and the seconds of each at which it fires, from `begin` to `last`."""

    rule: Rule = field(compare=False)
    days: str
    begin: datetime
    times: Sequence[int] = field(compare=False)
    last: datetime | None = field(default=None, compare=False)

    @property
    def is_frequent(self) -> bool:
        """Whether every hour of its days has a time."""
        return self.rule.get("BYHOUR", "").count(",") == 23

    def days_from(self, day: date) -> Iterator[date]:
        """Beginning with the first one from `day` on."""
        day = max(day, self.begin.date())
        quiet_since, last = day.year, self.last.date() if self.last else date.max
        for year in range(day.year, last.year + 1):
            for found in days_of(self, year):
                if day <= found <= last and self.times_on(found):
                    quiet_since = year
                    yield found
            if year - quiet_since > HORIZON_YEARS:
                return

    def times_on(self, day: date) -> Sequence[int]:
        days, midnight = days_of(self, day.year), datetime.combine(day, time())
        if day not in days[(index := bisect_left(days, day)) : index + 1]:
            return ()
        first = bisect_left(self.times, (self.begin - midnight) / SECOND)
        end = bisect_right(self.times, (self.last - midnight) / SECOND) if self.last else None
        return self.times[first:end]


@lru_cache(maxsize=4096)
def days_of(pattern: RulePattern, year: int) -> Sequence[date]:
    """The days of a rule in a year."""
    start, first = _interval_before(pattern, year), date(year, 1, 1)
    if start is None or pattern.begin.year > year:
        return ()
    late = next(late for late in range(9998, 9900, -1) if _calendar(late) == _calendar(year))
    moved = datetime.combine(date(late, 1, 1) + (start - first), time())
    found = rrulestr(f"{pattern.days};UNTIL={late}1231T000000", dtstart=moved)
    days = (moment.date().replace(year=year) for moment in found if moment.year == late)
    return tuple(day for day in days if day >= pattern.begin.date())


def _calendar(year: int) -> tuple[int, bool, bool]:
    return date(year, 1, 1).weekday(), isleap(year), isleap(year - 1)


def _interval_before(pattern: RulePattern, year: int) -> date | None:
    """The beginning of an interval from which all of the year is reached; None if none is."""
    first, begin, step = date(year, 1, 1), pattern.begin.date(), int(pattern.rule["INTERVAL"])
    freq, week_start = pattern.rule["FREQ"], WEEKDAYS.index(pattern.rule["WKST"])
    if freq == "YEARLY":
        return None if (year - begin.year) % step else first
    if freq == "MONTHLY":
        ahead = (12 * (begin.year - year) + begin.month - 1) % step
        return date(year, ahead + 1, 1) if ahead < 12 else None
    if freq == "WEEKLY":
        begin, step = begin - (begin.weekday() - week_start) % 7 * DAY, 7 * step
    return first - (first - begin).days % step * DAY


def rule_pattern(rule: Rule, start: datetime | None, zone: ZoneInfo) -> RulePattern:
    """The pattern of a rule that begins at `start`. Raises InvalidSchedule."""
    if start is None and ("COUNT" in rule or int(rule["INTERVAL"]) > 1):
        part = "COUNT" if "COUNT" in rule else "INTERVAL"
        raise InvalidSchedule(f"{part} needs 'start_at', the time from which it counts")
    begin = start.astimezone(zone).replace(tzinfo=None, microsecond=0) if start else ANCHOR
    days = {part: rule[part] for part in DAYS if part in rule}
    if not days.keys() - {"BYMONTH", "BYSETPOS"}:
        month, day, weekday = str(begin.month), str(begin.day), WEEKDAYS[begin.weekday()]
        left_open = {
            "YEARLY": {"BYMONTH": month, "BYMONTHDAY": day},
            "MONTHLY": {"BYMONTHDAY": day},
            "WEEKLY": {"BYDAY": weekday},
        }
        days = {**left_open.get(rule["FREQ"], {}), **days}
    hours, minutes, seconds = (
        numbers_of(rule, part) or (at,)
        for part, at in zip(CLOCK, begin.timetuple()[3:6], strict=True)
    )
    days |= {part: rule[part] for part in ("FREQ", "INTERVAL", "WKST")}
    times = tuple(3600 * h + 60 * m + s for h, m, s in product(hours, minutes, seconds))
    pattern = RulePattern(rule, text_of(days), begin, times)
    if next(pattern.days_from(begin.date()), None) is None:
        raise InvalidSchedule("it never fires: there is no such day")
    return replace(pattern, last=_until(rule, zone) or _counted(rule, pattern))


def _until(rule: Rule, zone: ZoneInfo) -> datetime | None:
    if (text := rule.get("UNTIL")) is None:
        return None
    if not re.fullmatch(r"\d{8}(T\d{6}Z?)?", text):
        raise InvalidSchedule(f"UNTIL: {text!r} is not a date such as 20261231 or 20261231T180000Z")
    until = datetime.fromisoformat(text)
    if "T" not in text:
        return datetime.combine(until, time.max)
    return until.astimezone(zone).replace(tzinfo=None) if until.tzinfo else until


def _counted(rule: Rule, pattern: RulePattern) -> datetime | None:
    """The last time of a rule with COUNT."""
    left = int(rule.get("COUNT", 0))
    for day in pattern.days_from(pattern.begin.date()) if left else ():
        if day.year - pattern.begin.year > YEARS_COUNTED:
            raise InvalidSchedule(f"COUNT is reached after more than {YEARS_COUNTED} years")
        times = pattern.times_on(day)
        if left <= len(times):
            return datetime.combine(day, time()) + times[left - 1] * SECOND
        left -= len(times)
    return None
