"""Spans of time in which the audit counts the ticks of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor.ledger.actions import Action, entry_of
from supervisor.ledger.functions import Call, Functions
from supervisor.times import instant, ms_of


@dataclass(frozen=True, slots=True)
class AuditSpan:
    """The ticks in (first_at, last_at], of which `counted` were dealt with."""

    job: str
    first_at: datetime
    last_at: datetime
    counted: int
    without_outcome: int
    """Of all the job's ticks and runs so far, those that have no outcome and are not open."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit made of a span."""

    span: AuditSpan

    wrong: int
    """How many ticks were counted twice or not at all."""

    overdue: int
    """How many ticks after the span are not dealt with yet."""

    finding: Mapping[str, Any] | None
    """What is to be remembered of it, if anything is wrong."""


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
