"""The page of failures: groups of runs by job and error, filtered, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import failed_runs
from supervisor.operate.failures import FailureGroup, groups_of
from supervisor.web.jobs_page import names_with
from supervisor.web.jobs_query import JobsQuery, number_of, page_of

#: How far back, as the address names it; history is kept for seven days.
SPANS = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
DEFAULT_SPAN = "24h"

#: Runs of one group that are listed.
MOST_SHOWN = 100

FILTERS = ("job", "label", "error")


@dataclass(frozen=True, slots=True)
class FailuresQuery:
    """What the address asks for; words that are not valid are ignored."""

    job: str = ""
    """A part of names."""

    label: str = ""

    error: str = ""
    """A part of why runs failed."""

    span: str = DEFAULT_SPAN

    group: str = ""
    """The id of one group, whose runs are listed."""

    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> FailuresQuery:
        span = query.get("span", "")
        return cls(
            **{name: query.get(name, "").strip()[:200] for name in FILTERS},
            span=span if span in SPANS else DEFAULT_SPAN,
            group=query.get("group", "")[:12],
            page=number_of(query),
        )

    @property
    def words(self) -> dict[str, str]:
        """The query as part of an address, without what is so by default."""
        words = {name: getattr(self, name) for name in (*FILTERS, "group")}
        words["span"] = self.span if self.span != DEFAULT_SPAN else ""
        return {name: word for name, word in words.items() if word}

    @property
    def kept(self) -> Mapping[str, str]:
        """The hidden fields of the form that filters."""
        return {"span": self.span} if self.span != DEFAULT_SPAN else {}

    @property
    def is_narrowed(self) -> bool:
        return any(getattr(self, name) for name in (*FILTERS, "group"))

    def url(self, *, span: str | None = None, group: str | None = None, page: int = 1) -> str:
        query = replace(self, span=span or self.span, group=self.group if group is None else group)
        words = query.words | ({"page": str(page)} if page > 1 else {})
        return "failures" + (f"?{urlencode(words)}" if words else "")


def failures_of(
    ledger: Ledger, query: FailuresQuery, now: datetime
) -> tuple[list[FailureGroup], bool]:
    """The groups on all pages, and whether all failures of the time were looked at."""
    names = names_with(ledger, JobsQuery(search=query.job, label=query.label))
    runs, are_all = failed_runs(ledger, names, now - SPANS[query.span])
    groups = groups_of(ledger, runs, query.error)
    return [g for g in groups if query.group in ("", g.id)], are_all


def failures_page(ledger: Ledger, query: FailuresQuery, now: datetime) -> dict[str, Any]:
    """total, runs and left: all groups, their runs, and those of these that no other run has
    repeated.
    """
    groups, are_all = failures_of(ledger, query, now)
    shown, page, pages = page_of(groups, query.page)
    return {
        "query": query,
        "groups": shown,
        "total": len(groups),
        "runs": sum(group.count for group in groups),
        "left": sum(len(group.left) for group in groups),
        "page": page,
        "pages": pages,
        "are_all": are_all,
        "spans": SPANS,
        "most_runs": MOST_SHOWN,
    }
