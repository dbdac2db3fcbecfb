"""Runs by outcome and time, newest first.

1. Of each job a page of its history is read: ids and times of admission, within the bounds.
2. Of these ids the states are read, and nothing else of the records.
3. A job is asked for its next page only as long as that could still hold one of the newest matches.
4. The records of the matches are read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.readings import Readings, chunks
from supervisor.ledger.replies import ms_of
from supervisor.runs.run import Run, RunState

PAGE = 100

Entry = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`outcome`: a state, several, or None for any. limit: of matches.

    `since` and `until`: when a run was admitted, both included.
    """

    outcome: RunState | Set[RunState] | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50


def search(ledger: Readings, jobs: Sequence[str], wanted: Wanted) -> list[Run]:
    matches: dict[str, float] = {}
    pending = list(jobs)
    offset = 0
    while pending:
        pages = dict(zip(pending, pages_of(ledger, pending, wanted, offset), strict=True))
        entries = [entry for page in pages.values() for entry in page]
        matches |= dict(with_outcome(ledger, entries, wanted.outcome))
        newest = heapq.nlargest(wanted.limit, matches.values())
        oldest_shown = newest[-1] if len(newest) == wanted.limit else float("-inf")
        pending = [
            job for job, page in pages.items() if len(page) == PAGE and page[-1][1] > oldest_shown
        ]
        offset += PAGE
    ids = heapq.nlargest(wanted.limit, matches, key=matches.__getitem__)
    return ledger.runs(ids)


def pages_of(
    ledger: Readings, jobs: Sequence[str], wanted: Wanted, offset: int
) -> Iterator[list[Entry]]:
    lowest = ms_of(wanted.since) if wanted.since else "-inf"
    highest = ms_of(wanted.until) if wanted.until else "+inf"
    for chunk in chunks(jobs):
        with ledger.client.pipeline(transaction=False) as pipe:
            for job in chunk:
                key = ledger.keys.history(job)
                pipe.zrevrangebyscore(key, highest, lowest, offset, PAGE, withscores=True)
            yield from pipe.execute()


def with_outcome(
    ledger: Readings, entries: Sequence[Entry], outcome: RunState | Set[RunState] | None
) -> Iterator[Entry]:
    if outcome is None:
        yield from entries
        return
    wanted = {outcome} if isinstance(outcome, RunState) else outcome
    for chunk in chunks(entries):
        with ledger.client.pipeline(transaction=False) as pipe:
            for run_id, _ in chunk:
                pipe.hget(ledger.keys.run(run_id), "state")
            states = pipe.execute()
        yield from (entry for entry, state in zip(chunk, states, strict=True) if state in wanted)
