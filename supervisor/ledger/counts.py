"""What the ledger counts of jobs: spans of time for the audit, and figures for scrapes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis.exceptions import ConnectionError, TimeoutError

from supervisor.ledger.actions import Action, entry_of
from supervisor.ledger.functions import Call, Functions
from supervisor.ledger.reads import chunks
from supervisor.ledger.records import UNACCOUNTED_FIELDS
from supervisor.ledger.replies import instant, ms_of


@dataclass(frozen=True, slots=True)
class AuditSpan:
    """The ticks in (first_at, last_at], of which `counted` were dealt with."""

    job: str
    first_at: datetime
    last_at: datetime
    counted: int
    unsettled: int
    """Of all the job's ticks and runs so far, those that have no outcome and are not open."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit made of a span.

    wrong: ticks that were counted twice or not at all. overdue: ticks after it that are
    not dealt with yet. finding: what is to be remembered of it, if anything is wrong.
    """

    span: AuditSpan
    wrong: int
    overdue: int
    finding: Mapping[str, Any] | None


class AuditSpans:
    """Opened and closed by the auditor; none is closed twice."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def open(self, jobs: Iterable[str]) -> list[AuditSpan]:
        """The time since the last audit of each job that a beat has loaded."""
        names = list(jobs)
        replies = self._functions.many("audit", [Call((name,)) for name in names])
        return [
            AuditSpan(name, instant(reply[0]), instant(reply[1]), int(reply[2]), int(reply[3]))
            for name, reply in zip(names, replies, strict=True)
            if reply
        ]

    def close(self, audited: Iterable[Audited]) -> None:
        """The next audit begins where these end."""
        calls = [
            Call(
                (
                    a.span.job,
                    ms_of(a.span.first_at),
                    ms_of(a.span.last_at),
                    a.span.counted,
                    a.wrong,
                    a.overdue,
                    "" if a.finding is None else json.dumps(a.finding),
                )
            )
            for a in audited
        ]
        self._functions.many("audit", calls)

    def acknowledge(self, job: str, action: Action | None = None) -> None:
        """Clears what audits have found so far, and counters that do not add up."""
        self._functions.act(entry_of(action), "acknowledge", job)


# Integers of thousands of jobs at once.
#
# A whole hash comes with the names of its fields: twice as many objects as are asked for, and for a
# scrape of ten thousand jobs that is most of the time. Here a job is one short text.

#: Jobs whose integers one call reads, which takes the server less than a millisecond.
JOBS_PER_CALL = 20


class Figures:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def unaccounted(self, jobs: Sequence[str]) -> dict[str, int]:
        """JobRecord.unaccounted_ticks by job, of those that have any."""
        ticks = (sum(map(abs, integers)) for integers in self.of(jobs, UNACCOUNTED_FIELDS))
        return {job: number for job, number in zip(jobs, ticks, strict=True) if number}

    def of(self, jobs: Sequence[str], fields: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """These integers of each job, in the order of the fields; 0 for an absent one.

        The server reads the next jobs while the caller deals with these. A connection that is lost
        meanwhile is opened again, once.
        """
        calls = [Call((" ".join(fields), *some)) for some in chunks(jobs, JOBS_PER_CALL)]
        done = 0
        try:
            for lines in self._functions.stream("figures", calls):
                done += 1
                yield from map(integers_in, lines)
        except (ConnectionError, TimeoutError):
            for lines in self._functions.stream("figures", calls[done:]):
                yield from map(integers_in, lines)


def integers_in(line: str) -> tuple[int, ...]:
    return tuple(map(int, line.split(" ")))
