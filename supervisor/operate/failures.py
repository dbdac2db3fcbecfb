"""Failed runs by job and error: the first line of why they failed, without what differs in each.

1. Of the jobs that failed last, the histories are read: of each run how it ended, and nothing else.
2. Two errors are the same if their first lines are, apart from ids, times and long numbers.
3. A group knows which of its runs no other has repeated: those can be run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha1

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import FailedRun
from supervisor.operate.repeating import left_of

#: What differs from run to run: run ids, times, UUIDs, addresses, long or broken numbers. Short
#: whole numbers stay: HTTP 404 is not HTTP 500.
DIFFERING = re.compile(
    r"(?<![\w.-])[\w.-]+@(?:manual-|start-)?[0-9A-Z][\w:.+-]{9,}(?:~\S+)?"
    r"|\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[a-f]*\d)[0-9a-f]{12,}\b"
    r"|\d+\.\d+|\d{4,}",
    re.ASCII | re.IGNORECASE,
)

#: Characters of an error that are compared.
LONGEST_ERROR = 200


def first_line(reason: str) -> str:
    lines = reason.strip().splitlines()
    return lines[0][:LONGEST_ERROR] if lines else ""


def normalised(reason: str) -> str:
    """``KeyError: ... in order ...`` of ``KeyError: 0x7f3a in order 4711``."""
    return DIFFERING.sub("...", first_line(reason))


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Runs of one job that failed with one error."""

    id: str
    """Names the group in an address."""

    job: str

    error: str
    """That of the last of the runs."""

    runs: Sequence[FailedRun]
    """Newest first."""

    left: Sequence[str]
    """Ids of the runs that no other has repeated, oldest first."""

    @property
    def last(self) -> FailedRun:
        return self.runs[0]

    @property
    def first(self) -> FailedRun:
        return self.runs[-1]

    @property
    def count(self) -> int:
        return len(self.runs)


def group_id(job: str, error: str) -> str:
    return sha1(f"{job}\n{error}".encode(), usedforsecurity=False).hexdigest()[:12]


def groups_of(ledger: Ledger, runs: Iterable[FailedRun], text: str = "") -> list[FailureGroup]:
    """The groups, by their last run, newest first. text: what the reasons have in them."""
    runs_of: dict[tuple[str, str], list[FailedRun]] = {}
    for run in runs:
        if text.lower() in run.reason.lower():
            error = f"{run.state.value} {normalised(run.reason)}"
            runs_of.setdefault((run.job, error), []).append(run)
    left = left_of(ledger, [run for some in runs_of.values() for run in some])
    groups = []
    for (job, error), some in runs_of.items():
        some.sort(key=lambda run: (run.finished_at, run.id), reverse=True)
        ids = [run.id for run in reversed(some) if run.id in left]
        line = first_line(some[0].reason)
        groups.append(FailureGroup(group_id(job, error), job, line, tuple(some), ids))
    return sorted(groups, key=lambda group: (group.last.finished_at, group.id), reverse=True)
