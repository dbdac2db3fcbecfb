"""Public holidays that `exclude` names -> their dates, by the library `holidays`.

They are computed when a job is loaded, for last year and the six after it, so that what has been
decided about ticks of the past stays decided, and what `plan` looks at lies ahead. Beat reads its
files again when a year begins: the holidays of its jobs do not run out. Whose they are, and the
last year of which the library knows them, stays with the job (job/exclusions.py).

The library is an extra: it is large beside this package, few jobs need it, and its dates change
with laws, so that those who need it choose when to update it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from supervisor.catalog.yaml_source import UNREADABLE
from supervisor.errors import closest, shown
from supervisor.job.exclusions import (
    HOLIDAYS,
    Exclusions,
    HolidayDates,
    InvalidExclusion,
    holidays_text,
    parse_all,
)
from supervisor.job.fields import Form, ItemFault

YEARS_BACK, YEARS_AHEAD = 1, 5

HOLIDAY_FORMS = "such as {holidays: DE}, {holidays: DE-BY} or {holidays: NYSE}"

MISSING = "pip install 'celery-beat-supervisor[holidays]' where files and jobs are loaded"


def with_dates(items: Any, year: int) -> tuple[Any, list[ItemFault]]:
    """`exclude` with dates where it names holidays, and what is wrong there.

    year: the one that it is now.
    """
    if not isinstance(items, list):
        return items, []
    dated, faults = [], list[ItemFault]()
    for number, item in enumerate(items):
        try:
            dated.append(_dated(item, year))
        except InvalidExclusion as error:
            faults.append(ItemFault((number,), str(error), error.hint))
            dated.append(HolidayDates())
    return dated, faults


def _dated(item: Any, year: int) -> Any:
    """Holidays that a loaded job says it has are computed again: an exported job keeps them."""
    if isinstance(item, dict):
        return _named(item, year)
    if isinstance(item, str) and (again := re.fullmatch(HOLIDAYS, item)):
        return holidays_of(again[1], year)
    return item


def _named(item: dict[str, Any], year: int) -> HolidayDates:
    if UNREADABLE in item.values():
        return HolidayDates()
    if [*item] != ["holidays"]:
        meant = closest(next(iter(item), ""), ["holidays"]) if len(item) == 1 else None
        raise InvalidExclusion(f"{shown(item)} does not name holidays", meant or HOLIDAY_FORMS)
    name = item["holidays"]
    if not isinstance(name, str) or not name:
        raise InvalidExclusion(f"'holidays': {shown(name)} is not a name", HOLIDAY_FORMS)
    return holidays_of(name, year)


@lru_cache(maxsize=256)
def holidays_of(name: str, year: int) -> HolidayDates:
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
        return _dates(f"{country}-{part}", days, year)
    if country in countries:
        return _dates(country, holidays.country_holidays(country, years=years), year)
    if country in markets and not dash:
        return _dates(country, holidays.financial_holidays(country, years=years), year)
    what = f"{shown(name)} is no country and no market whose holidays are known"
    raise InvalidExclusion(what, closest(country, [*countries, *markets]) or HOLIDAY_FORMS)


def as_written(texts: Sequence[str], year: int) -> list[str | dict[str, str]]:
    """``{holidays: DE-BY}`` in place of its dates, where loading that gives these texts again.

    texts: of a loaded job's `exclude`. year: the one that it is now.
    """
    exclusions, named, covered = parse_all(texts), list[dict[str, str]](), set[date]()
    for of, until in exclusions.holidays.items():
        try:
            again = parse_all(holidays_of(of, year))
        except InvalidExclusion:  # the library is not here, or knows them no longer
            return list(texts)
        if again.holidays != {of: until}:
            return list(texts)
        covered |= set(_each(again.days))
        named.append({"holidays": of})
    if not covered <= set(_each(exclusions.days)):
        return list(texts)
    others = tuple(span for span in exclusions.days if not covered.issuperset(_each([span])))
    return [*Exclusions(exclusions.weekdays, others, exclusions.times).texts, *named]


def _each(spans: Iterable[tuple[date, date]]) -> Iterator[date]:
    for first, last in spans:
        yield from (first + timedelta(days=n) for n in range((last - first).days + 1))


def _part_of(country: str, part: str, parts: Sequence[str]) -> str:
    """The part as the library spells it, mostly a code such as BY. Raises InvalidExclusion."""
    for each in parts:
        if each.upper() == part.upper():
            return each
    what = f"{country} has no part {shown(part)} with holidays of its own"
    all_of_them = f"known are {', '.join(parts)}" if parts else f"write {country}"
    raise InvalidExclusion(what, closest(part, parts) or all_of_them)


def _dates(name: str, days: Iterable[date], year: int) -> HolidayDates:
    days = sorted(days)
    until = min(days[-1].year, year + YEARS_AHEAD) if days else 0
    if until < year:
        raise InvalidExclusion(f"{name!r}: no holidays are known of {year}", "list the dates")
    return HolidayDates([*map(str, days), holidays_text(name, until)])


FORM = Form("exclude", with_dates, as_written)
