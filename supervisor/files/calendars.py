"""Calendar files and public holidays that `exclude` names -> the dates they hold.

They are read when schedule files are, and a job's spec holds their dates: beat and workers need
no file, and a change of a calendar is a change of each job that names it. Jobs that come from no
file cannot name one; holidays they can (resolved_without_files).

All calendars of a load are read by one child process, within one budget: of files, of processor
time, of memory. A calendar that uses it up is a problem, and so is each that would come after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.errors import InvalidSchedule, Problem, closest, shown
from supervisor.files.yaml_source import (
    UNREADABLE,
    UnusableFile,
    check_inside,
    content_of,
    decoded,
    digest_of,
)
from supervisor.job.exclusions import (
    HOLIDAYS,
    MOST_SPANS,
    Calendar,
    Exclusions,
    InvalidExclusion,
    holidays_text,
    parse_all,
)
from supervisor.job.fields import ItemFault
from supervisor.process import Child, Limits, Work
from supervisor.schedule.rrule import WEEKDAYS, all_numbered, weekdays_of
from supervisor.times import DAY, render_moment

if TYPE_CHECKING:
    from icalendar import Calendar as ICalendar
    from icalendar import Component

# An iCalendar file -> the spans of time that its events take, as texts of `exclude`.
#
# An event of whole days excludes these, by the job's clocks; one with times excludes from its
# beginning to its end. Cancelled events exclude nothing. Events that recur for ever are followed
# for a fixed span of years, so that a calendar means the same whenever it is read.
#
# Two libraries read the file, and one call of them may take very long on a rule or on the
# definition of a zone: this is done in a child process with limits, which says at which line it is.


#: How often the events of a file may begin on one day, by what their rules name.
MOST_A_DAY = 1000

#: From, inclusive, and to, exclusive: no job runs before it, and calendars are renewed till then.
FIRST, LAST = date(2025, 1, 1), date(2050, 1, 1)

#: Daily and weekly events may not begin before this year.
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
    """The problem and its line: the library quotes the line but does not number it."""
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
        # The library counts from there, for each span of time it is asked about.
        is_old = isinstance(start, date) and start.year < EARLIEST
        if is_old and frequency in ("DAILY", "WEEKLY"):
            yield f"an event with FREQ={frequency} from before {EARLIEST}"


def _complete(event: Component) -> None:
    """Writes out what RFC 5545 means by its rules where the library reads them otherwise."""
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
    """The most often that it begins on a day; the library would make a list of all of these."""
    names = ("BYHOUR", "BYMINUTE", "BYSECOND")
    return sum(prod(len(rule.get(name, (0,))) for name in names) for rule in _rules_of(event))


def _spans_of(
    calendar: ICalendar, line_of: Mapping[Any, int], most: int
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
        render_moment(moment.astimezone(UTC) if moment.tzinfo else moment) for moment in times
    )


#: Up to this many problems of a calendar are reported.
MOST_FAULTS = 1_000

#: For all calendars of a load together. Three hundred yearly events take one second.
MOST_FILES = 100
LIMITS = Limits(cpu_seconds=10, memory=512 << 20)

Reader = Callable[[str], Reading]
"""A file's text -> exclusions, and what is wrong on which lines."""


def lines_of(text: str) -> Reading:
    """One exclusion on each line; what follows a # is a comment."""
    yield 1
    texts, faults = list[str](), list[tuple[int, InvalidExclusion]]()
    for number, line in enumerate(text.splitlines(), start=1):
        if content := line.partition("#")[0].strip():
            try:
                if parse_all([content]).holidays:
                    hint = "name holidays in 'exclude': {holidays: DE-BY}"
                    raise InvalidExclusion(f"{content!r} is not for a file", hint)
                texts.append(content)
            except InvalidExclusion as error:
                faults.append((number, error))
                if len(faults) == MOST_FAULTS:
                    break
    return texts, faults


READERS: Mapping[str, Reader] = {"file": lines_of, "ical": texts_of}

KINDS = ("holidays", *READERS)


@dataclass(slots=True)
class Calendars:
    """The calendar files of one directory; each is read, and its problems reported, once.

    directory: None where jobs come from no file. year: of which holidays are computed, and of
    those around it. digests: of the contents of those that were read.
    """

    directory: Path | None
    year: int
    problems: list[Problem] = field(default_factory=list)
    digests: dict[Path, bytes] = field(default_factory=dict)
    _read: dict[tuple[str, Path], Calendar] = field(default_factory=dict)
    _child: Child | None = None
    _used_up_by: Path | None = None

    def close(self) -> None:
        if self._child:
            self._child.end()
        self._child = None

    def resolve(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[ItemFault]]:
        """A job's values with dates where `exclude` names calendars, and what is wrong there."""
        items = values.get("exclude")
        if not isinstance(items, list):
            return dict(values), []
        resolved, faults = [], list[ItemFault]()
        for number, item in enumerate(items):
            try:
                resolved.append(self._resolved(item))
            except (UnusableFile, InvalidExclusion) as error:
                faults.append(ItemFault((number,), str(error), error.hint))
                resolved.append(Calendar())
        return {**values, "exclude": resolved}, faults

    def _resolved(self, item: Any) -> Any:
        """Holidays that a loaded job says it has are computed again: an exported job keeps them."""
        if isinstance(item, dict):
            return self._calendar(item)
        if isinstance(item, str) and (again := re.fullmatch(HOLIDAYS, item)):
            return holidays_of(again[1], self.year)
        return item

    def _calendar(self, item: dict[str, Any]) -> Calendar:
        if UNREADABLE in item.values():
            return Calendar()
        kind, name = next(iter(item.items()), ("", None))
        if len(item) != 1 or kind not in KINDS:
            meant = closest(kind, KINDS) if len(item) == 1 else None
            hint = meant or "such as {holidays: DE-BY}, {file: days.txt} or {ical: days.ics}"
            raise UnusableFile(f"{shown(item)} does not name one calendar", hint)
        if not isinstance(name, str) or not name:
            raise UnusableFile(f"{kind!r}: {shown(name)} is not a name")
        return holidays_of(name, self.year) if kind == "holidays" else self._file(kind, name)

    def _file(self, kind: str, name: str) -> Calendar:
        if self.directory is None:
            what = f"{{{kind}: {name}}}: calendar files are for jobs of schedule files"
            raise UnusableFile(what, "list the dates, or name {holidays: DE-BY}")
        file = self.directory / name
        if (kind, file) not in self._read:
            try:
                check_inside(self.directory, file)
            except UnusableFile as error:
                raise UnusableFile(f"{shown(name)} {error.what}", error.hint) from None
            if len(self._read) == MOST_FILES:
                raise UnusableFile(f"more than {MOST_FILES} calendar files", "join some of them")
            self._read[kind, file] = self._content(kind, file)
        return self._read[kind, file]

    def _content(self, kind: str, file: Path) -> Calendar:
        try:
            content = content_of(file)
            self.digests[file] = digest_of(content)
            texts, faults = self._followed(kind, file, decoded(content))
        except UnusableFile as error:
            self.problems.append(Problem(str(file), error.line, None, error.what, error.hint))
            return Calendar()
        self.problems += [Problem(str(file), *fault) for fault in faults]
        return Calendar(texts)

    def _followed(self, kind: str, file: Path, text: str) -> Followed:
        """What the child makes of the text. Raises UnusableFile when it cannot within LIMITS."""
        if self._used_up_by:
            what = f"is not read: {self._used_up_by.name} used up {TOGETHER}"
            raise UnusableFile(what)
        if self._child is None:
            self._child = Child(_in_child, LIMITS)
            self._child.receive()
        self._child.send((kind, text))
        line = 1
        try:
            while isinstance(found := self._child.receive(), int):
                line = found
                self._child.send(None)
        except (ChildProcessError, MemoryError):
            self._child, self._used_up_by = None, file
            hint = "look at the rule here, or list the dates in a {file: ...}"
            raise UnusableFile(f"takes more than {TOGETHER}", hint, line) from None
        texts, faults = found
        return texts, faults


def resolved_without_files(
    values: Mapping[str, Any], year: int
) -> tuple[dict[str, Any], list[ItemFault]]:
    """Values of a job that comes from no file, with dates where `exclude` names holidays.

    year: the one that it is now. A calendar file is among what is wrong.
    """
    return Calendars(None, year).resolve(values)


#: The budget in words.
TOGETHER = (
    f"the {LIMITS.cpu_seconds} seconds of processor time, or {LIMITS.memory >> 20} MiB of memory, "
    "that all calendars have together"
)

Followed = tuple[tuple[str, ...], list[tuple[int, None, str, str | None]]]


def _in_child() -> Work:
    """Yields the lines that may take long, one by one, and then what the calendars say."""
    followed: Followed | None = None
    while True:
        kind, text = yield followed
        try:
            texts, faults = yield from READERS[kind](text)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a library's, of which any may come
            texts, faults = [], [(1, InvalidExclusion(f"cannot be read: {error!r}", None))]
        found = parse_all(texts).texts
        if len(found) > MOST_SPANS:
            what = f"{len(found):,} dates and ranges; {MOST_SPANS:,} are allowed"
            faults.append((1, InvalidExclusion(what, None)))
        said = [(line, None, str(error), error.hint) for line, error in faults[:MOST_FAULTS]]
        followed = (() if faults else found), said


# Public holidays that `exclude` names -> their dates, by the library `holidays`.
#
# They are computed when a job is loaded, for last year and the six after it, so that what has been
# decided about ticks of the past stays decided, and what `plan` looks at lies ahead. Beat reads its
# files again when a year begins: the holidays of its jobs do not run out. Whose they are, and the
# last year of which the library knows them, stays with the job (job/exclusions.py).
#
# The library is an extra: it is large beside this package, few jobs need it, and its dates change
# with laws, so that those who need it choose when to update it.


YEARS_BACK, YEARS_AHEAD = 1, 5

HOLIDAY_FORMS = "such as {holidays: DE}, {holidays: DE-BY} or {holidays: NYSE}"

MISSING = "pip install 'celery-beat-supervisor[holidays]' where files and jobs are loaded"


@lru_cache(maxsize=256)
def holidays_of(name: str, year: int) -> Calendar:
    """The texts of `exclude` for a country, a part of one, or a market: DE, DE-BY, NYSE.

    year: the one that it is now. Raises InvalidExclusion.
    """
    try:
        import holidays
    except ImportError:
        what = f"{shown(name)}: the library 'holidays' is not installed"
        raise InvalidExclusion(what, MISSING) from None
    country, dash, part = name.partition("-")
    country, years = country.upper(), range(year - YEARS_BACK, year + YEARS_AHEAD + 1)
    countries, markets = holidays.list_supported_countries(), holidays.list_supported_financial()
    if country in countries and dash:
        part = _part_of(country, part, countries[country])
        days = holidays.country_holidays(country, part, years=years)
        return _calendar(f"{country}-{part}", days, year)
    if country in countries:
        return _calendar(country, holidays.country_holidays(country, years=years), year)
    if country in markets and not dash:
        return _calendar(country, holidays.financial_holidays(country, years=years), year)
    what = f"{shown(name)} is no country and no market whose holidays are known"
    raise InvalidExclusion(what, closest(country, [*countries, *markets]) or HOLIDAY_FORMS)


def as_written(texts: Sequence[str], year: int) -> list[str | dict[str, str]]:
    """``{holidays: DE-BY}`` in place of its dates, where loading that gives these texts again.

    texts: of a loaded job's `exclude`. year: the one that it is now.
    """
    found, named, covered = parse_all(texts), list[dict[str, str]](), set[date]()
    for of, until in found.holidays.items():
        try:
            known = parse_all(holidays_of(of, year))
        except InvalidExclusion:  # the library is not here, or knows them no longer
            return list(texts)
        if known.holidays != {of: until}:
            return list(texts)
        covered |= set(_each(known.days))
        named.append({"holidays": of})
    if not covered <= set(_each(found.days)):
        return list(texts)
    others = tuple(span for span in found.days if not covered.issuperset(_each([span])))
    return [*Exclusions(found.weekdays, others, found.times).texts, *named]


def _each(spans: Iterable[tuple[date, date]]) -> Iterator[date]:
    for first, last in spans:
        yield from (first + timedelta(days=n) for n in range((last - first).days + 1))


def _part_of(country: str, part: str, parts: Sequence[str]) -> str:
    """The part as the library spells it, mostly a code such as BY. Raises InvalidExclusion."""
    for known in parts:
        if known.upper() == part.upper():
            return known
    what = f"{country} has no part {shown(part)} with holidays of its own"
    all_of_them = f"known are {', '.join(parts)}" if parts else f"write {country}"
    raise InvalidExclusion(what, closest(part, parts) or all_of_them)


def _calendar(name: str, days: Iterable[date], year: int) -> Calendar:
    days = sorted(days)
    until = min(days[-1].year, year + YEARS_AHEAD) if days else 0
    if until < year:
        raise InvalidExclusion(f"{name!r}: no holidays are known of {year}", "list the dates")
    return Calendar([*map(str, days), holidays_text(name, until)])
