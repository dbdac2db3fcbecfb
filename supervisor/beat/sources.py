"""Follows the sources of jobs other than files: what they have is what is loaded of them.

A source loads each edit itself, as soon as it is committed. This is for what it could not load,
since Redis was unavailable, and for a Redis that has lost its data:

1. Twice a minute, and when a beat begins to lead, a child process asks each source for its
   fingerprint, and reads it where that is another than when it was last loaded.
2. What is loaded of the source is compared with what it has. Only what differs is put or removed,
   and only if it is still of the version that was compared: an edit meanwhile wins, and the next
   round deals with the rest.
3. A source that is unavailable changes nothing. Nor does one that has lost more than half of its
   jobs: `manage.py supervisor sync --yes` is for a person who means it.
"""

from __future__ import annotations

import time

from supervisor.beat.reload import LIMITS, some
from supervisor.beat.turn import Turn
from supervisor.catalog.entries import Entries
from supervisor.catalog.reconcile import Reconciled, reconcile_changed
from supervisor.job.changes import registered
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.process import Child

log = get_logger("supervisor.sources")

#: How often sources are asked, and when a child that asks them is ended: a database may hang.
RECONCILE_SECONDS = 30.0
LONGEST_SECONDS = 120.0


class FollowedSources:
    """Only the leading beat follows sources."""

    def __init__(self, ledger: Ledger, entries: Entries) -> None:
        self._ledger = ledger
        self._entries = entries
        self._child: Child | None = None
        self._next_at = 0.0
        self._problems: dict[str, list[str]] = {}

    def reconcile_soon(self) -> None:
        self._next_at = 0.0

    def stop(self) -> None:
        if self._child:
            self._child.end()
            self._child = None

    def is_due(self, _: Turn) -> bool:
        return True

    def do(self, _: Turn) -> None:
        self.follow()

    def follow(self) -> None:
        """Returns at once: a child asks the sources."""
        if self._child is None:
            if time.monotonic() >= self._next_at:
                self._next_at = time.monotonic() + RECONCILE_SECONDS
                self._child = Child(self._reconcile_in_child, LIMITS) if registered() else None
            return
        if self._child.has_ended():
            self._receive(self._child)
        elif self._child.age_seconds > LONGEST_SECONDS:
            log.error("sources not followed", error=f"more than {LONGEST_SECONDS:.0f} seconds")
            self.stop()

    def _receive(self, child: Child) -> None:
        try:
            outcomes: list[Reconciled] = child.result()
        except Exception as error:  # noqa: BLE001 - it is tried again
            log.error("sources not followed", error=repr(error))
            outcomes = []
        self._child = None
        for outcome in outcomes:
            self._report(outcome)

    def _report(self, outcome: Reconciled) -> None:
        if outcome.changes:
            log.info(
                "source loaded",
                source=outcome.source,
                added=some(outcome.changes.added),
                changed=some(outcome.changes.changed),
                removed=some(outcome.changes.removed),
            )
        if outcome.problems != self._problems.get(outcome.source, []):
            for problem in some(outcome.problems):
                log.error("source not loaded", source=outcome.source, problem=problem)
        self._problems[outcome.source] = outcome.problems

    def _reconcile_in_child(self) -> list[Reconciled]:
        return [reconcile_changed(self._ledger, self._entries, source) for source in registered()]
