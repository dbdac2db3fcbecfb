"""The items of `exclude`: weekdays, dates and spans of time, each a text of one form.

The texts are what the ledger keeps of a job, so they say everything: calendar files have become
dates by then. They are sorted and days are merged, so that a calendar that says the same in other
words is no change of the job.

Public holidays have become dates as well. Beside these a text says whose they are, and until when
they are known: ``holidays DE-BY until 2031`` excludes nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from typing import Any, TypeVar

from supervisor.errors import closest
from supervisor.job.faults import ItemFault, inside
from supervisor.times import MOMENT_PATTERN as MOMENT
from supervisor.times import parse_moment, render_moment

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")

#: Each job's spec holds its exclusions, and beat reads the spec at every tick of the job.
MOST_SPANS = 1000

#: What is kept of ``{holidays: DE-BY}`` beside its dates.
HOLIDAYS = r"holidays (\S(?:.{0,48}\S)?) until (\d{4})"

FORMS = "such as 2026-12-24, 2026-12-24..2027-01-02, SAT or MON-FRI"

Point = TypeVar("Point", date, datetime)


class Calendar(tuple[str, ...]):
    """The texts of a calendar file, or of holidays, in place of its name."""


class InvalidExclusion(ValueError):
    def __init__(self, what: str, hint: str | None = FORMS) -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Exclusions:
    """weekdays: Monday is 0. days: first and last. times: from, inclusive, and to, exclusive.
    holidays: whose are among the days, and the last year of which they are known.
    """

    weekdays: frozenset[int] = frozenset()
    days: tuple[tuple[date, date], ...] = ()
    times: tuple[tuple[datetime, datetime], ...] = ()
    holidays: Mapping[str, int] = field(default_factory=dict)

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
    """Whose holidays are known until this year or an earlier one, and until which."""
    matches = filter(None, (re.fullmatch(HOLIDAYS, text) for text in texts))
    return {match[1]: int(match[2]) for match in matches if int(match[2]) <= year}


def normal(items: Any) -> tuple[str, ...]:
    """The items of `exclude` in normal form; what is wrong with any of them is raised at once."""
    if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
        try:
            return _normal(tuple(items))
        except InvalidExclusion:
            pass  # reported below, item by item
    if not isinstance(items, list | tuple):
        raise inside([ItemFault((), f"{items!r} is not a list", "such as [SAT, 2026-12-24]")])
    texts, faults = list[str](), list[ItemFault]()
    for number, item in enumerate(items):
        try:
            texts += item if isinstance(item, Calendar) else parse_all((item,)).texts
        except InvalidExclusion as error:
            faults.append(ItemFault((number,), str(error), error.hint))
    if not faults:
        try:
            return _normal(tuple(texts))
        except InvalidExclusion as error:
            faults.append(ItemFault((), str(error), error.hint))
    raise inside(faults)


def parse(texts: Iterable[Any]) -> Exclusions:
    """Raises InvalidExclusion."""
    found = parse_all(texts)
    if len(found.weekdays) == len(WEEKDAYS):
        raise InvalidExclusion("every day of the week is excluded", "to stop a job: paused: true")
    spans = len(found.days) + len(found.times)
    if spans > MOST_SPANS:
        raise InvalidExclusion(f"{spans:,} dates and ranges; {MOST_SPANS:,} are allowed", None)
    return found


@lru_cache(maxsize=4096)
def _normal(texts: tuple[str, ...]) -> tuple[str, ...]:
    """A loaded job is read again at each of its ticks, and jobs share their calendars."""
    return parse(texts).texts


@dataclass(slots=True)
class _Collected:
    weekdays: set[int] = field(default_factory=set)
    days: list[tuple[date, date]] = field(default_factory=list)
    times: set[tuple[datetime, datetime]] = field(default_factory=set)
    holidays: dict[str, int] = field(default_factory=dict)

    def add(self, text: Any) -> None:
        if not isinstance(text, str):
            raise InvalidExclusion(f"{text!r} is not a date, a range or a weekday")
        if holidays := re.fullmatch(HOLIDAYS, text):
            of, until = holidays[1], int(holidays[2])
            self.holidays[of] = max(until, self.holidays.get(of, until))
            return
        first, dots, last = (part.strip() for part in text.partition(".."))
        if dots and re.fullmatch(MOMENT, first):
            self.times.add(_in_order(text, _moment(first, text), _moment(last, text)))
        elif re.match(r"\d", text):
            start = _date(first, text)
            self.days.append(_in_order(text, start, _date(last, text) if dots else start))
        else:
            self.weekdays.update(_weekdays(text))


def parse_all(texts: Iterable[Any]) -> Exclusions:
    """Without a bound on their number. Raises InvalidExclusion."""
    found = _Collected()
    for text in texts:
        found.add(text)
    times = sorted(found.times, key=lambda span: (str(span[0]), str(span[1])))
    days = tuple(_merged(found.days))
    return Exclusions(frozenset(found.weekdays), days, tuple(times), found.holidays)


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


def _merged(days: Sequence[tuple[date, date]]) -> Iterable[tuple[date, date]]:
    merged: list[tuple[date, date]] = []
    for first, last in sorted(days):
        if merged and first.toordinal() <= merged[-1][1].toordinal() + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged
