"""What one call does a part of, so that others have their turn; it is made until all is done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import chain

from supervisor.ledger.readings import Readings, chunks
from supervisor.ledger.replies import Cancellation, Rescue, ms_of, rescues
from supervisor.ledger.scripts import RUNS_PER_DISMISSAL, Scripts
from supervisor.ledger.ticks import Leadership
from supervisor.times.durations import to_ms

#: Runs of each kind that one call rescues; more kept the server from all others for too long.
RUNS_PER_RESCUE = 100

#: Runs whose times one call sets back, likewise.
RUNS_PER_REWIND = 100

#: What cancel.lua says when a second call has more to end.
ENDING = "ending"


def cancel_all(scripts: Scripts, run_id: str, reason: str) -> Cancellation:
    """A run, and the items of a large batch some at a time."""
    first = verdict = scripts("cancel", run_id, "cancelled", reason)[0]
    while verdict == ENDING:
        verdict = scripts("cancel", run_id, "cancelled", reason)[0]
    # Beat rescues what is left as well, and may have ended the last of them.
    was_open = first == ENDING and verdict == Cancellation.NOT_OPEN
    return Cancellation.CANCELLED if was_open else Cancellation(verdict)


def rewind_all(
    scripts: Scripts, readings: Readings, by: timedelta, since: datetime, jobs: Sequence[str]
) -> None:
    """After the server's clock was set back: see rewind.lua."""
    keys, before = readings.keys, ms_of(since)
    for index in ("leases", "outbox", "delayed", "sent"):
        # What the clock had not reached then; the rest is due, or was written since.
        later = readings.client.zrangebyscore(
            getattr(keys, index), f"({before}", "(+inf", withscores=True
        )
        for some in chunks(later, RUNS_PER_REWIND):
            facts = chain.from_iterable((run_id, int(score)) for run_id, score in some)
            scripts("rewind", to_ms(by), index, *facts)
    for names in chunks(jobs):
        scripts("rewind", to_ms(by), "jobs", *names)
    scripts("rewind", to_ms(by), "done")


def rescue_all(scripts: Scripts, limit: int, leadership: Leadership | None) -> tuple[Rescue, ...]:
    """Up to so many runs, or a few more."""
    token, keys = (leadership.token, (leadership.key,)) if leadership else ("", ())
    found: list[Rescue] = []
    while len(found) < limit:
        portion = min(limit - len(found), RUNS_PER_RESCUE)
        some = rescues(scripts("rescue", portion, token, keys=keys))
        found += some
        if len(some) < min(portion, RUNS_PER_DISMISSAL):
            break
    return tuple(found)
