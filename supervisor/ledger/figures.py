"""Integers of thousands of jobs at once.

A whole hash comes with the names of its fields: twice as many objects as are asked for, and for a
scrape of ten thousand jobs that is most of the time. Here a job is one short text, which can be
compared with the one before without being taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis.exceptions import ConnectionError, TimeoutError

from supervisor.ledger.functions import Call, Functions
from supervisor.ledger.reads import chunks

#: This many take the server less than a millisecond.
JOBS_PER_CALL = 20


class Figures:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def of(self, jobs: Sequence[str], fields: Sequence[str]) -> Iterator[str]:
        """For each job a line: the integers of these fields, a blank between; 0 for an absent one.

        The server reads the next jobs while the caller deals with these. A connection that is lost
        meanwhile is opened again, once.
        """
        named = chunks(jobs, JOBS_PER_CALL)
        calls = [Call((len(fields), *fields, *names)) for names in named]
        done = 0
        try:
            for lines in self._functions.stream("figures", calls):
                done += 1
                yield from lines
        except (ConnectionError, TimeoutError):
            for lines in self._functions.stream("figures", calls[done:]):
                yield from lines
