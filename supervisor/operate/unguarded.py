"""RedBeat's entries that are no jobs, so that RedBeat's own code emits them, without the guard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from supervisor.catalog.entries import CELERYS_OWN, Entries, SavedEntry, not_storable
from supervisor.ledger.ledger import Ledger
from supervisor.lists.schedules import REASONS

if TYPE_CHECKING:
    from celery import Celery


@dataclass(frozen=True, slots=True)
class Unguarded:
    entry: str
    next_due_at: datetime | None

    reason: str
    """Why it is no job, for people."""


def unguarded(app: Celery, ledger: Ledger) -> list[Unguarded]:
    entries = Entries(app, ledger)
    saved = entries.saved_by_app(frozenset(), but=())
    listed = [
        Unguarded(name, at, reason_of(app, name, saved.get(name)))
        for name, at in entries.unguarded().items()
    ]
    lost = entries_lost(app, entries).items()
    return listed + [Unguarded(name, None, reason) for name, reason in lost]


def entries_lost(app: Celery, entries: Entries) -> dict[str, str]:
    """The entries of `beat_schedule` that are no jobs and that RedBeat cannot store, and why."""
    reasons = not_storable(app)
    jobs = entries.jobs_among(reasons)
    return {name: reason for name, reason in reasons.items() if name not in jobs}


def reason_of(app: Celery, name: str, saved: SavedEntry | None) -> str:
    """saved: None for an entry of `beat_schedule`."""
    if name == CELERYS_OWN:
        return "Celery's own"
    reasons = [reason(app, name, saved) for reason in REASONS]
    return reasons[0] if reasons else "no job has its name, or names it with 'entry'"
