"""Which jobs an address asks for, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlencode

PAGE_SIZE = 50

T = TypeVar("T")


def page_of(items: Sequence[T], number: int) -> tuple[Sequence[T], int, int]:
    """The items of a page, its number, and how many pages there are; at most the last."""
    pages = max(1, -(-len(items) // PAGE_SIZE))
    number = min(max(1, number), pages)
    return items[(number - 1) * PAGE_SIZE : number * PAGE_SIZE], number, pages


def number_of(query: Mapping[str, str]) -> int:
    """The number of the page that the address asks for."""
    page = query.get("page", "1")
    return int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 1


class Filter(StrEnum):
    """failing: the last outcome was bad. skipping: runs were skipped since the last that began.

    late: the next time, or that of a run that is queued and has not started, is half a minute past;
    or no run has succeeded in time, as `due_by` says.
    """

    ALL = "all"
    FAILING = "failing"
    LATE = "late"
    RUNNING = "running"
    WAITING = "waiting"
    SKIPPING = "skipping"
    PAUSED = "paused"


class Sort(StrEnum):
    """The orders: name; state, failing first; next time; last start; most failures."""

    NAME = "name"
    STATE = "state"
    NEXT = "next"
    LAST = "last"
    FAILURES = "failures"


#: Sorted by these, the greatest comes first.
GREATEST_FIRST = frozenset({Sort.LAST, Sort.FAILURES})


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """What the address of the page asks for; words that are not valid are ignored."""

    search: str = ""
    label: str = ""
    filter: Filter = Filter.ALL
    sort: Sort = Sort.NAME
    is_reversed: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> JobsQuery:
        word, sort = query.get("state", ""), query.get("sort", "")
        column = sort.removeprefix("-")
        return cls(
            search=query.get("search", "").strip()[:100],
            label=query.get("label", "").strip()[:200],
            filter=Filter(word) if word in set(Filter) else Filter.ALL,
            sort=Sort(column) if column in set(Sort) else Sort.NAME,
            is_reversed=column in set(Sort) and sort.startswith("-"),
            page=number_of(query),
        )

    @property
    def order(self) -> str:
        """``-next`` for the reverse of ``next``."""
        return ("-" if self.is_reversed else "") + self.sort.value

    @property
    def words(self) -> dict[str, str]:
        """The query as part of an address, without what is so by default."""
        words = {"search": self.search, "label": self.label}
        words["state"] = self.filter.value if self.filter is not Filter.ALL else ""
        words["sort"] = self.order if self.order != Sort.NAME.value else ""
        return {name: word for name, word in words.items() if word}

    @property
    def is_narrowed(self) -> bool:
        """Whether it leaves jobs out, whatever their state."""
        return bool(self.search or self.label)

    @property
    def narrowed(self) -> Mapping[str, str]:
        """What leaves jobs out beside the search and the state, and the address without it."""
        return {f"label {self.label}": replace(self, label="").url()} if self.label else {}

    @property
    def kept(self) -> Mapping[str, str]:
        """The hidden fields of the form that searches."""
        return {name: word for name, word in self.words.items() if name != "search"}

    def url(self, filter: str | None = None, page: int = 1) -> str:
        shown = replace(self, filter=Filter(filter)) if filter else self
        return "./?" + urlencode(shown.words | ({"page": str(page)} if page > 1 else {}))

    def labelled_url(self, label: str) -> str:
        return replace(self, label=label).url()

    def sorted_url(self, column: str) -> str:
        """The address sorted by it, or reversed if it is sorted by it already."""
        is_again = self.sort.value == column and not self.is_reversed
        return replace(self, sort=Sort(column), is_reversed=is_again).url()

    def direction(self, column: str) -> str | None:
        """The value of aria-sort; None for a column that the list is not sorted by."""
        if self.sort.value != column:
            return None
        is_descending = self.is_reversed != (self.sort in GREATEST_FIRST)
        return "descending" if is_descending else "ascending"
