"""A job's runs that have not ended, as far as its record needs them: counted by the server.

A job may have a hundred thousand of them. To read each takes a client half a minute; here a call
counts some of them, and the next call goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.replies import to_instant
from supervisor.ledger.scripts import Call, Scripts
from supervisor.runs.run import RunState

#: Jobs that one call counts, and runs of all of them: the server is at it for a millisecond or two.
JOBS_PER_CALL = 50
RUNS_PER_CALL = 500

#: Calls that are sent together, of those that are made anyway.
CALLS_A_PACKET = 20


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """How many runs of a job are in which state.

    oldest_queued_at: for when the oldest was meant that is queued or waits and has not begun
    before; of a backfill, when it was asked for. oldest_running_at: since when the oldest is.
    """

    running: int = 0
    retrying: int = 0
    queued: int = 0
    waiting: int = 0
    oldest_queued_at: datetime | None = None
    oldest_running_at: datetime | None = None

    @property
    def state(self) -> str | None:
        """The most telling of their states; None without runs."""
        for state in (RunState.RUNNING, RunState.RETRYING, RunState.QUEUED, RunState.WAITING):
            if getattr(self, state):
                return state.value
        return None

    def __add__(self, other: OpenRuns) -> OpenRuns:
        return OpenRuns(
            *(self.running + other.running, self.retrying + other.retrying),
            *(self.queued + other.queued, self.waiting + other.waiting),
            earlier(self.oldest_queued_at, other.oldest_queued_at),
            earlier(self.oldest_running_at, other.oldest_running_at),
        )


NO_RUNS = OpenRuns()


def count_open_runs(scripts: Scripts, jobs: Sequence[str]) -> dict[str, OpenRuns]:
    """By job, of those that have any."""
    found: dict[str, OpenRuns] = {}
    to_count = [(job, "0") for job in jobs]
    while to_count:
        portions = [
            to_count[start : start + JOBS_PER_CALL]
            for start in range(0, len(to_count), JOBS_PER_CALL)
        ]
        calls = (Call((RUNS_PER_CALL, *flat(portion))) for portion in portions)
        left: list[tuple[str, str]] = []
        counts = scripts.stream("open_runs", calls, CALLS_A_PACKET)
        for portion, replies in zip(portions, counts, strict=True):
            for (job, _), (cursor, line) in zip(portion, replies, strict=True):
                if line:
                    found[job] = found.get(job, NO_RUNS) + counted(line)
                if cursor:
                    left.append((job, cursor))
        to_count = left
    return found


def flat(portion: Iterable[tuple[str, str]]) -> list[str]:
    return [fact for facts in portion for fact in facts]


def counted(line: str) -> OpenRuns:
    running, retrying, queued, waiting, meant_for, since = map(int, line.split(" "))
    return OpenRuns(*(running, retrying, queued, waiting), to_instant(meant_for), to_instant(since))


def earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)
