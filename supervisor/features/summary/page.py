"""What the first page shows of a summary."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from supervisor.features.summary.rule import Day, unknown_words
from supervisor.features.summary.store import SummaryStore
from supervisor.ledger.ledger import Ledger


def day(ledger: Ledger, now: datetime) -> dict[str, Any]:
    """The last day that is summed up."""
    days = SummaryStore(ledger).latest()
    if days is None:
        return {"summary": None}
    summary, before = days
    last = Day.before(now, ZoneInfo(summary.zone))
    return {
        "summary": summary,
        "before": before,
        "is_yesterday": last.date == summary.date,
        "unknown": unknown_words(summary) if summary.partial else "",
    }
