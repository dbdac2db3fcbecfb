"""The items of `exclude`: weekdays, dates and spans of time, each a text of one form.

The texts are what the ledger keeps of a job, so they say everything. They are sorted and days are
merged, so that a list that says the same in other words is no change of the job.

Public holidays have become dates as well. A text beside these dates says which holidays they are
and how far they are known: ``holidays DE-BY until 2031`` excludes nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from typing import Any, TypeVar

from supervisor.errors import closest, shown
from supervisor.times import MOMENT_PATTERN as MOMENT
from supervisor.times import parse_moment, render_moment

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")

#: Each job's spec holds its exclusions, and beat reads the spec at every tick of the job.
MOST_SPANS = 1000

#: What is kept of ``{holidays: DE-BY}`` beside its dates.
HOLIDAYS = r"holidays (\S(?:.{0,48}\S)?) until (\d{4})"

FORMS = "such as 2026-12-24, 2026-12-24..2027-01-02, SAT or MON-FRI"

Point = TypeVar("Point", int, date, datetime)


class HolidayDates(tuple[str, ...]):
    """The texts of holidays, in place of their name."""


class InvalidExclusion(ValueError):
    def __init__(self, what: str, hint: str | None = FORMS) -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What `exclude` excludes."""

    weekdays: frozenset[int] = frozenset()
    """Monday is 0."""

    days: tuple[tuple[date, date], ...] = ()
    """The first and the last of each span."""

    times: tuple[tuple[datetime, datetime], ...] = ()
    """From, inclusive, and to, exclusive."""

    holidays: Mapping[str, int] = field(default_factory=dict)
    """Whose are among the days, and the last year of which they are known."""

    @property
    def texts(self) -> tuple[str, ...]:
        return (
            *(WEEKDAYS[day] for day in sorted(self.weekdays)),
            *(str(day) if day == last else f"{day}..{last}" for day, last in self.days),
            *(f"{render_moment(start)}..{render_moment(end)}" for start, end in self.times),
            *(holidays_text(of, until) for of, until in sorted(self.holidays.items())),
        )


def holidays_text(of: str, until: int) -> str:
    return f"holidays {of} until {until}"


def holidays_ending(texts: Iterable[str], year: int) -> Mapping[str, int]:
    """The holidays that are known only up to this year or an earlier one, and up to which."""
    matches = filter(None, (re.fullmatch(HOLIDAYS, text) for text in texts))
    return {match[1]: int(match[2]) for match in matches if int(match[2]) <= year}


def parse(texts: Iterable[Any]) -> Exclusions:
    """Raises InvalidExclusion."""
    exclusions = parse_all(texts)
    if len(exclusions.weekdays) == len(WEEKDAYS):
        raise InvalidExclusion("every day of the week is excluded", "to stop a job: paused: true")
    spans = len(exclusions.days) + len(exclusions.times)
    if spans > MOST_SPANS:
        raise InvalidExclusion(f"{spans:,} dates and ranges; {MOST_SPANS:,} are allowed", None)
    return exclusions


@lru_cache(maxsize=4096)
def normal_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """A loaded job is read again at each of its ticks, and jobs share their holidays."""
    return parse(texts).texts


def parse_all(texts: Iterable[Any]) -> Exclusions:
    """Like `parse`, for any number of texts. Raises InvalidExclusion."""
    weekdays, holidays = set[int](), dict[str, int]()
    days, times = list[tuple[int, int]](), set[tuple[datetime, datetime]]()
    for text in texts:
        if not isinstance(text, str):
            raise InvalidExclusion(f"{shown(text)} is not a date, a range or a weekday")
        first, dots, last = (part.strip() for part in text.partition(".."))
        if match := re.fullmatch(HOLIDAYS, text):
            holidays[match[1]] = max(int(match[2]), holidays.get(match[1], 0))
        elif dots and re.fullmatch(MOMENT, first):
            times.add(_in_order(text, _moment(first, text), _moment(last, text)))
        elif re.match(r"\d", text):
            start = _date(first, text)
            start, end = _in_order(text, start, _date(last, text) if dots else start)
            days.append((start.toordinal(), end.toordinal() + 1))
        else:
            weekdays.update(_weekdays(text))
    return Exclusions(
        frozenset(weekdays),
        tuple((date.fromordinal(start), date.fromordinal(end - 1)) for start, end in merged(days)),
        tuple(sorted(times, key=lambda span: (str(span[0]), str(span[1])))),
        holidays,
    )


def merged(spans: Iterable[tuple[Point, Point]]) -> list[tuple[Point, Point]]:
    """The spans in order. Those that overlap or touch become one; a span's end is no part of it."""
    joined: list[tuple[Point, Point]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif start < end:
            joined.append((start, end))
    return joined


def _weekdays(text: str) -> Iterable[int]:
    words = [word.strip() for word in text.upper().split("-")]
    for word in words:
        if word not in WEEKDAYS:
            what = f"{text!r} is not a date, a range or a weekday"
            raise InvalidExclusion(what, closest(word[:3], WEEKDAYS) or FORMS)
    days = [WEEKDAYS.index(word) for word in words]
    if len(days) > 2 or days[-1] < days[0]:
        what = f"{text!r} is not a range of weekdays from MON to SUN"
        raise InvalidExclusion(what, "write it as two, such as FRI-SUN and MON")
    return range(days[0], days[-1] + 1)


def _date(text: str, whole: str) -> date:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise InvalidExclusion(f"{whole!r} is not a date or a range of dates")
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidExclusion(f"{whole!r}: {text} is on no calendar", None) from None


def _moment(text: str, whole: str) -> datetime:
    try:
        return parse_moment(text)
    except ValueError as error:
        hint = "from and to, such as 2026-12-24T18:00:00..2026-12-25T06:00:00"
        raise InvalidExclusion(f"{whole!r}: {error}", hint) from None


def _in_order(text: str, first: Point, last: Point) -> tuple[Point, Point]:
    if isinstance(first, datetime) and isinstance(last, datetime):
        if (first.tzinfo is None) != (last.tzinfo is None):
            raise InvalidExclusion(f"{text!r}: give both times an offset, or none", None)
        if first == last:
            raise InvalidExclusion(f"{text!r} is no time at all", "the end is not part of it")
    if last < first:
        raise InvalidExclusion(f"{text!r} ends before it begins", None)
    return first, last
