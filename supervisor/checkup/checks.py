"""All checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from supervisor.checkup import bookkeeping, consumers, processes, server, setup
from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *(server.permissions, server.persistence, server.eviction, server.version),
    *(processes.beats, processes.workers, processes.owner, processes.leaders),
    *(processes.clocks, processes.tasks),
    *(consumers.unworked, consumers.crowded, consumers.shared, consumers.wide),
    *(
        bookkeeping.files,
        bookkeeping.schema,
        bookkeeping.unread,
        bookkeeping.silent_runs,
        bookkeeping.ticks,
    ),
    *(setup.supervised, setup.settings, setup.servers),
    *(setup.visibility, setup.entries, setup.unloaded),
)


def examine(facts: Facts) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(facts)]
