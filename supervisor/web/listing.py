"""Which jobs the page lists: chosen by name and by how they stand, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode

from supervisor.ledger.glances import Standing, jobs_at, standings
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import RunState

PAGE_SIZE = 50

#: Last outcomes that are nobody's wish.
BAD = frozenset(
    {RunState.FAILED, RunState.TIMED_OUT, RunState.LOST, RunState.EXPIRED, RunState.MISSED}
)


class Filter(StrEnum):
    """failing: the last outcome was bad. skipping: runs were skipped since the last that began."""

    ALL = "all"
    RUNNING = "running"
    WAITING = "waiting"
    FAILING = "failing"
    SKIPPING = "skipping"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the address of the page asks for; what makes no sense is left out."""

    search: str = ""
    filter: Filter = Filter.ALL
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wish:
        word, page = query.get("state", ""), query.get("page", "1")
        return cls(
            search=query.get("search", "").strip()[:100],
            filter=Filter(word) if word in set(Filter) else Filter.ALL,
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 1,
        )

    def url(self, filter: str | None = None, page: int = 1) -> str:
        said = {"search": self.search, "state": filter or self.filter.value, "page": str(page)}
        default = {"search": "", "state": Filter.ALL.value, "page": "1"}
        return "./?" + urlencode({k: v for k, v in said.items() if v != default[k]})


@dataclass(frozen=True, slots=True)
class Listing:
    """names: of the page. counts: jobs for each filter, of those whose name fits."""

    wish: Wish
    names: tuple[str, ...]
    found: int
    counts: Mapping[str, int]
    page: int
    pages: int


def listing_of(ledger: Ledger, wish: Wish) -> Listing:
    needle = wish.search.lower()
    names = sorted(name for name in ledger.job_names() if needle in name.lower())
    fits = tests_of(standings(ledger, names), jobs_at(ledger))
    counts = {word.value: sum(map(fits[word], names)) for word in Filter}
    wanted = [name for name in names if fits[wish.filter](name)]
    pages = max(1, -(-len(wanted) // PAGE_SIZE))
    page = min(max(1, wish.page), pages)
    shown = wanted[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return Listing(wish, tuple(shown), len(wanted), counts, page, pages)


def tests_of(
    standing: Mapping[str, Standing], at: Mapping[RunState, set[str]]
) -> Mapping[Filter, Callable[[str], bool]]:
    held = set().union(*(jobs for state, jobs in at.items() if state is not RunState.RUNNING))
    return {
        Filter.ALL: lambda name: True,
        Filter.RUNNING: at[RunState.RUNNING].__contains__,
        Filter.WAITING: held.__contains__,
        Filter.FAILING: lambda name: standing[name].last_outcome in BAD,
        Filter.SKIPPING: lambda name: standing[name].consecutive_skips > 0,
        Filter.PAUSED: lambda name: standing[name].paused,
    }
