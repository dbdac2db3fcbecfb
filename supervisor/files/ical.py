"""An iCalendar file -> the spans of time that its events take, as texts of `exclude`.

An event of whole days excludes these, by the job's clocks; one with times excludes from its
beginning to its end. Cancelled events exclude nothing. Events that recur for ever are followed for
a fixed stretch of years, so that a calendar means the same whenever it is read.

What two libraries make of a rule, or of a zone's definition, may take them any time in one call:
this is done in a child process with limits (calendars.py), which says at which line it is.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, date, datetime
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from supervisor.errors import InvalidSchedule
from supervisor.job.exclusions import InvalidExclusion
from supervisor.times.clock import DAY
from supervisor.times.moments import render
from supervisor.timing.rrule_fields import WEEKDAYS, weekdays_of
from supervisor.timing.rules import all_numbered

if TYPE_CHECKING:
    from icalendar import Calendar, Component

#: How often the events of a file may begin on one day, by what their rules name.
MOST_A_DAY = 1000

#: From, inclusive, and to, exclusive: no job runs before it, and calendars are renewed till then.
FIRST, LAST = date(2025, 1, 1), date(2050, 1, 1)

#: Year in which daily and weekly events may begin.
EARLIEST = 1970

MOST_EVENTS = 1000
MOST_OCCURRENCES = 10_000

Fault = tuple[int, InvalidExclusion]

Reading = Generator[int, None, tuple[list[str], list[Fault]]]
"""Yields the line that it comes to, which may take long; returns exclusions, and what is wrong."""


def texts_of(text: str) -> Reading:
    """The exclusions of a calendar, and what is wrong on which lines."""
    # Two libraries that take a tenth of a second to load, which few schedules need.
    import icalendar

    yield next((n for n, line in _lines(text) if line == "BEGIN:VTIMEZONE"), 1)
    try:
        calendars = icalendar.Calendar.from_ical(text, multiple=True)
    except (ValueError, KeyError, IndexError) as error:
        return [], [_not_a_calendar(text, error)]
    if not calendars or any(calendar.name != "VCALENDAR" for calendar in calendars):
        return [], [_not_a_calendar(text, None)]
    lines = [n for n, line in _lines(text) if line == "BEGIN:VEVENT"]
    events = [event for calendar in calendars for event in calendar.walk("VEVENT")]
    if len(events) > MOST_EVENTS:
        what = f"{len(events):,} events; {MOST_EVENTS:,} are allowed"
        return [], [(1, InvalidExclusion(what, "split it"))]
    faults = [
        (line, InvalidExclusion(what, None))
        for line, event in zip(lines, events, strict=False)
        for what in _faults_of(event)
    ]
    if faults:
        return [], faults
    if sum(map(_times_a_day, events)) > MOST_A_DAY:
        what = f"events begin more often than {MOST_A_DAY:,} times a day"
        return [], [(1, InvalidExclusion(what, "leave out BYHOUR, BYMINUTE and BYSECOND"))]
    try:
        for event in events:
            _complete(event)
    except InvalidSchedule as error:
        return [], [(1, InvalidExclusion(f"RRULE: {error}", None))]
    line_of = {event.get("UID"): line for line, event in zip(lines, events, strict=False)}
    spans: list[str] = []
    try:
        for calendar in calendars:
            spans += yield from _spans_of(calendar, line_of, MOST_OCCURRENCES - len(spans))
    except InvalidExclusion as error:
        return [], [(1, error)]
    return spans, []


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield number, line.strip().upper()


def _not_a_calendar(text: str, error: Exception | None) -> Fault:
    """The library quotes the line that it could not read, but does not number it."""
    quoted = re.search(r"into parts: '(.*?)'", str(error))
    starts = (line.startswith(quoted[1]) for line in text.splitlines()) if quoted else iter(())
    line = next((number for number, found in enumerate(starts, 1) if found), 1)
    return line, InvalidExclusion("is not an iCalendar file", "it begins with BEGIN:VCALENDAR")


def _faults_of(event: Component) -> Iterator[str]:
    for name, error in event.errors:
        yield f"{name}: {error}"
    if event.errors:  # to ask for one of these properties raises
        return
    start = getattr(event.get("DTSTART"), "dt", None)
    if not isinstance(start, date):
        yield "an event without DTSTART"
    end = getattr(event.get("DTEND"), "dt", None)
    if type(start) is type(end) and _is_before(end, start):
        yield "an event that ends before it begins"
    for rule in _rules_of(event):
        frequency = "".join(rule.get("FREQ", ()))
        if frequency in ("SECONDLY", "MINUTELY", "HOURLY"):
            yield f"an event with FREQ={frequency}; DAILY is the most often"
        if any(number < 1 for number in rule.get("INTERVAL", ())):
            yield "an event with an INTERVAL below 1"
        # The library counts from there, for each stretch of time it is asked about.
        is_old = isinstance(start, date) and start.year < EARLIEST
        if is_old and frequency in ("DAILY", "WEEKLY"):
            yield f"an event with FREQ={frequency} from before {EARLIEST}"


def _complete(event: Component) -> None:
    """Writes out what RFC 5545 means by its rules, and the library takes otherwise."""
    from icalendar import vWeekday

    for rule in _rules_of(event):
        days = weekdays_of(",".join(map(str, rule["BYDAY"]))) if rule.get("BYDAY") else ()
        if rule.get("BYWEEKNO") and not (days or rule.get("BYMONTHDAY") or rule.get("BYYEARDAY")):
            start: Any = event["DTSTART"]
            days = ((start.dt.weekday(), None),)
        frequency = "".join(rule.get("FREQ", ()))
        days = all_numbered(days, within="MONTHLY" if rule.get("BYMONTH") else frequency)
        if days:
            rule["BYDAY"] = [vWeekday(f"{number or ''}{WEEKDAYS[day]}") for day, number in days]


def _is_before(one: Any, other: Any) -> bool:
    try:
        return bool(one < other)
    except TypeError:  # one with an offset, the other without
        return False


def _rules_of(event: Component) -> list[Any]:
    rules = event.get("RRULE")
    return rules if isinstance(rules, list) else [rules] if rules else []


def _times_a_day(event: Component) -> int:
    """How often it begins on a day at most; the library would make a list of all of these."""
    names = ("BYHOUR", "BYMINUTE", "BYSECOND")
    return sum(prod(len(rule.get(name, (0,))) for name in names) for rule in _rules_of(event))


def _spans_of(
    calendar: Calendar, line_of: Mapping[Any, int], most: int
) -> Generator[int, None, list[str]]:
    import recurring_ical_events

    spans: list[str] = []
    number = 0
    try:
        query = recurring_ical_events.of(calendar)
        for series in query.series:
            query.series = [series]  # one at a time, so that it is known which of them takes long
            yield line_of.get(series.uid, 1)
            for begin, end in pairwise(_months()):
                for event in query.between(begin, end):
                    number += 1
                    if number > most:
                        what = f"more than {MOST_OCCURRENCES:,} days until {LAST}"
                        raise InvalidExclusion(what, "for days of the week write SAT or MON-FRI")
                    first, last = event["DTSTART"].dt, event["DTEND"].dt
                    if first == last and not isinstance(first, datetime):
                        last += DAY  # as calendars show it, whatever the standard says of it
                    if first < last and str(event.get("STATUS", "")).upper() != "CANCELLED":
                        spans.append(_span(first, last))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        if isinstance(error, InvalidExclusion):
            raise
        raise InvalidExclusion(f"its events cannot be followed: {error}", None) from error
    return spans


def _months() -> Iterator[date]:
    """The first day of each: what the library makes a list of at once."""
    for year in range(FIRST.year, LAST.year):
        yield from (date(year, month, 1) for month in range(1, 13))
    yield LAST


def _span(start: Any, end: Any) -> str:
    if not isinstance(start, datetime):
        return f"{start}..{end - DAY}"
    times = (moment.replace(microsecond=0) for moment in (start, end))
    return "..".join(
        render(moment.astimezone(UTC) if moment.tzinfo else moment) for moment in times
    )
