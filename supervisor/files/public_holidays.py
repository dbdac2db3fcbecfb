"""Public holidays that `exclude` names -> their dates, by the library `holidays`.

They are computed when a job is loaded, for last year and the six after it, so that what has been
decided about ticks of the past stays decided, and what `plan` looks at lies ahead. Beat reads its
files again when a year begins: the holidays of its jobs do not run out. Whose they are, and the
last year of which the library knows them, stays with the job (job/exclusions.py).

The library is an extra: it is large beside this package, few jobs need it, and its dates change
with laws, so that those who need it choose when to update it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache

from supervisor.errors import closest
from supervisor.files.yaml_source import shown
from supervisor.job.exclusions import (
    Calendar,
    Exclusions,
    InvalidExclusion,
    holidays_text,
    parse_all,
)

YEARS_BACK, YEARS_AHEAD = 1, 5

FORMS = "such as {holidays: DE}, {holidays: DE-BY} or {holidays: NYSE}"

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
    raise InvalidExclusion(what, closest(country, [*countries, *markets]) or FORMS)


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
    """As the library writes it: mostly a code such as BY. Raises InvalidExclusion."""
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
