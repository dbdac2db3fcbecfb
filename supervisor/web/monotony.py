"""Counters that never go down, though Redis may lose its last second of writes.

Prometheus takes a counter that fell from 100 to 99 for one that began anew and counted to 99. So
what was served once is served again until the ledger has counted on past it. A job that is counted
anew is told by its `created`: then the counters begin anew as well.

This is remembered by the process that serves; one that was started in between serves what is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import ge

Counts = tuple[int, ...]


class Monotony:
    def __init__(self) -> None:
        self._served: dict[str, tuple[int, Counts]] = {}

    def held(self, job: str, created: int, counts: Counts) -> Counts:
        """The counts, none of them lower than before."""
        since, before = self._served.get(job, (created, counts))
        if since == created and not all(map(ge, counts, before)):
            counts = tuple(map(max, counts, before))
        self._served[job] = created, counts
        return counts

    def forget_all_but(self, jobs: Iterable[str]) -> None:
        self._served = {job: self._served[job] for job in jobs}
