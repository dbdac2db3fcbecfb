"""Entries that RedBeat's own means put into its schedule, emitted by RedBeat's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from redbeat.schedulers import RedBeatScheduler

from supervisor.beat.entries import Entries

log = structlog.get_logger("supervisor.beat")


def emit_stock(
    scheduler: RedBeatScheduler, entries: Entries, keys: Iterable[str], leads: Callable[[], bool]
) -> None:
    """`leads`: asked before each of them, for no script of the ledger looks at the lock again."""
    for key in keys:
        if not leads():  # they are due still, for whichever beat leads
            return
        try:
            if entries.is_of_a_ledger(key):
                continue
            entry = scheduler.Entry.from_key(key, app=scheduler.app)
            scheduler.maybe_due(entry, producer=scheduler.producer)
        except KeyError:
            entries.forget(key)
        except Exception:  # one bad entry must not stop the others
            log.exception("entry not emitted", entry=key)
