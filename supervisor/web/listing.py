"""Which jobs the page lists: chosen by name and by how they stand, sorted, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from supervisor.ledger.glances import OpenJobs, Standing, open_jobs, standings
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import FAILURES, RunState
from supervisor.ticks.expectations import LATE_LEAST

PAGE_SIZE = 50

#: Last outcomes that no one wishes for.
BAD = frozenset({*FAILURES, RunState.MISSED})


class Filter(StrEnum):
    """failing: the last outcome was bad. skipping: runs were skipped since the last that began.

    late: the next time, or that of a run that is queued and has not started, is half a minute past.
    """

    ALL = "all"
    RUNNING = "running"
    WAITING = "waiting"
    LATE = "late"
    FAILING = "failing"
    SKIPPING = "skipping"
    PAUSED = "paused"


class Sort(StrEnum):
    """By name; by what runs, waits, is paused; the soonest; the last started; the most failures."""

    NAME = "name"
    STATE = "state"
    NEXT = "next"
    LAST = "last"
    FAILURES = "failures"


#: Of these the greatest comes first.
GREATEST_FIRST = frozenset({Sort.LAST, Sort.FAILURES})


@dataclass(frozen=True, slots=True)
class Wish:
    """What the address of the page asks for; what makes no sense is left out."""

    search: str = ""
    filter: Filter = Filter.ALL
    sort: Sort = Sort.NAME
    is_reversed: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wish:
        word, page, sort = query.get("state", ""), query.get("page", "1"), query.get("sort", "")
        column = sort.removeprefix("-")
        return cls(
            search=query.get("search", "").strip()[:100],
            filter=Filter(word) if word in set(Filter) else Filter.ALL,
            sort=Sort(column) if column in set(Sort) else Sort.NAME,
            is_reversed=column in set(Sort) and sort.startswith("-"),
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 1,
        )

    @property
    def order(self) -> str:
        """``-next`` for the reverse of ``next``."""
        return ("-" if self.is_reversed else "") + self.sort.value

    @property
    def title(self) -> str:
        parts = [
            self.filter.value if self.filter is not Filter.ALL else "",
            f"with {self.search}" if self.search else "",
            f"by {self.sort.value}" if self.sort is not Sort.NAME else "",
            f"page {self.page}" if self.page > 1 else "",
        ]
        return ", ".join(["Jobs", *filter(None, parts)])

    def url(self, filter: str | None = None, page: int = 1) -> str:
        said = {
            "search": self.search,
            "state": filter or self.filter.value,
            "sort": self.order,
            "page": str(page),
        }
        default = {"search": "", "state": Filter.ALL.value, "sort": Sort.NAME.value, "page": "1"}
        return "./?" + urlencode({k: v for k, v in said.items() if v != default[k]})

    def sorted_url(self, column: str) -> str:
        """Sorted by it; the other way round where it is."""
        is_again = self.sort.value == column and not self.is_reversed
        return replace(self, sort=Sort(column), is_reversed=is_again).url()

    def direction(self, column: str) -> str | None:
        """As ARIA has it; None for a column that the list is not sorted by."""
        if self.sort.value != column:
            return None
        is_descending = self.is_reversed != (self.sort in GREATEST_FIRST)
        return "descending" if is_descending else "ascending"


@dataclass(frozen=True, slots=True)
class Listing:
    """names: of the page. counts: jobs for each filter, of those whose name fits."""

    wish: Wish
    names: tuple[str, ...]
    found: int
    counts: Mapping[str, int]
    page: int
    pages: int


def listing_of(ledger: Ledger, wish: Wish, now: datetime) -> Listing:
    names = names_with(ledger, wish.search)
    standing, at = standings(ledger, names), open_jobs(ledger)
    fits = tests_of(standing, at, now)
    counts = {word.value: sum(map(fits[word], names)) for word in Filter}
    wanted = in_order([name for name in names if fits[wish.filter](name)], wish, standing, at)
    pages = max(1, -(-len(wanted) // PAGE_SIZE))
    page = min(max(1, wish.page), pages)
    shown = wanted[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return Listing(wish, tuple(shown), len(wanted), counts, page, pages)


def names_of(ledger: Ledger, wish: Wish, now: datetime) -> list[str]:
    """All that the wish names, whatever the page."""
    names = names_with(ledger, wish.search)
    if wish.filter is Filter.ALL and wish.sort is Sort.NAME:
        return names[::-1] if wish.is_reversed else names
    standing, at = standings(ledger, names), open_jobs(ledger)
    fits = tests_of(standing, at, now)[wish.filter]
    return in_order([name for name in names if fits(name)], wish, standing, at)


def names_with(ledger: Ledger, search: str) -> list[str]:
    needle = search.lower()
    return sorted(name for name in ledger.job_names() if needle in name.lower())


def tests_of(
    standing: Mapping[str, Standing], found: OpenJobs, now: datetime
) -> Mapping[Filter, Callable[[str], bool]]:
    held = jobs_held(found)

    def is_late(name: str) -> bool:
        following = None if standing[name].paused else standing[name].next_at
        times = [moment for moment in (following, found.queued_for.get(name)) if moment]
        return any(now - moment >= LATE_LEAST for moment in times)

    return {
        Filter.ALL: lambda name: True,
        Filter.RUNNING: found.at[RunState.RUNNING].__contains__,
        Filter.WAITING: held.__contains__,
        Filter.LATE: is_late,
        Filter.FAILING: lambda name: standing[name].last_outcome in BAD,
        Filter.SKIPPING: lambda name: standing[name].consecutive_skips > 0,
        Filter.PAUSED: lambda name: standing[name].paused,
    }


def jobs_held(found: OpenJobs) -> set[str]:
    return set().union(*(jobs for state, jobs in found.at.items() if state != RunState.RUNNING))


def in_order(
    names: Sequence[str], wish: Wish, standing: Mapping[str, Standing], found: OpenJobs
) -> list[str]:
    """`names`: by name, which decides where jobs are equal. What has no value comes last."""
    running, held = found.at[RunState.RUNNING], jobs_held(found)

    def state(name: str) -> int:
        return next(
            place
            for place, is_so in enumerate(
                (name in running, name in held, standing[name].paused, True)
            )
            if is_so
        )

    values: Mapping[Sort, Callable[[str], Any]] = {
        Sort.NAME: lambda name: name,
        Sort.STATE: state,
        Sort.NEXT: lambda name: None if standing[name].paused else standing[name].next_at,
        Sort.LAST: lambda name: standing[name].last_start_at,
        Sort.FAILURES: lambda name: standing[name].failures or None,
    }
    value = values[wish.sort]
    known = [name for name in names if value(name) is not None]
    known.sort(key=value, reverse=wish.direction(wish.sort.value) == "descending")
    return known + [name for name in names if value(name) is None]
