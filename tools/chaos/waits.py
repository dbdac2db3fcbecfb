"""How long a job stood still although a run of it was due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.chaos.books import Row
from tools.chaos.chronicle import Kind, Window
from tools.chaos.evidence import Evidence
from tools.chaos.intervals import Interval, covered
from tools.chaos.jobs import LEASE_TTL
from tools.chaos.witness import Execution

#: A lease runs out, beat looks each second, a message that was lost is sent again.
ALLOWED_SECONDS = LEASE_TTL + 4.0

#: From the end of one run to the start of the next, which waits for its lock: no lease runs out,
#: and no beat is needed.
ALLOWED_BETWEEN_RUNS = 4.0

#: Of a job whose runs do not wait it may be the next tick that starts, or a retry, after a while.
ALLOWED_FOR_NEXT_TICK = ALLOWED_SECONDS + 4.0

#: Each further loss of a run's message, with the process that had it or on its way: it is sent
#: again after twice as long. So many are allowed for.
ALLOWED_FOR_LOSS = 5.0
MOST_LOSSES = 2

#: A tick is admitted sooner than this after it is due.
SURELY_ADMITTED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Wait:
    """From the end of one execution, or from when the next was due, until the next one's start."""

    run: str
    interval: Interval

    excused: float
    """How much of it lies in windows of faults."""

    allowed: float = ALLOWED_SECONDS
    """How long the rest may be."""

    @property
    def judged_seconds(self) -> float:
        return self.interval.length - self.excused

    @property
    def is_too_long(self) -> bool:
        return self.judged_seconds > self.allowed


def waits(evidence: Evidence) -> Iterator[Wait]:
    """Those that began during the chaos, also one that has not ended; the work of frozen processes
    has stopped."""
    rows = {row.run: row for row in evidence.rows}
    previous: Execution | None = None
    idle_since = evidence.chaos.start
    for execution in evidence.executions:
        row = rows.get(execution.run)
        if wait := wait_for(evidence, row, execution, previous, idle_since):
            yield wait
        last = execution.at_work[-1] if execution.at_work else execution.whole
        if last.end >= idle_since:
            idle_since, previous = last.end, execution
    open_rows = [row for row in evidence.rows if row.state.is_open]
    if open_rows and idle_since < evidence.until:
        first = min(open_rows, key=lambda row: row.due_at)
        yield from filter(None, [wait_for(evidence, first, None, previous, idle_since)])


def wait_for(
    evidence: Evidence,
    row: Row | None,
    execution: Execution | None,
    previous: Execution | None,
    idle_since: float,
) -> Wait | None:
    """`execution`: the one that was waited for; None while the wait lasts."""
    is_first = previous is None or (row is not None and previous.run != row.run)
    is_due = row is not None and is_first and evidence.job.keeps_waiting
    since = max(idle_since, row.due_at) if row and is_due else idle_since
    until = execution.whole.start if execution else evidence.until
    run = execution.run if execution else row.run if row else ""
    interval = Interval(since, until)
    if not interval.length or since >= evidence.chaos.end:
        return None
    if row and execution and previous and hands_over(evidence, row, previous, interval):
        return Wait(run, interval, 0.0, ALLOWED_BETWEEN_RUNS)
    allowed = ALLOWED_SECONDS if evidence.job.keeps_waiting else ALLOWED_FOR_NEXT_TICK
    losses = sum(interval.start <= at <= interval.end for _, at in evidence.ends)
    allowed += ALLOWED_FOR_LOSS * min(max(0, losses - 1), MOST_LOSSES)
    return Wait(run, interval, excused(interval, evidence.windows), allowed)


def hands_over(evidence: Evidence, row: Row, previous: Execution, interval: Interval) -> bool:
    """Whether the run waited for nothing but the one that ended: no beat is needed to start it."""
    is_due_long = row.due_at < interval.start - SURELY_ADMITTED_SECONDS
    is_next = previous.run != row.run  # beat sees to a retry
    if not (evidence.job.keeps_waiting and is_due_long and previous.is_done and is_next):
        return False
    around = Interval(interval.start - SURELY_ADMITTED_SECONDS, interval.end)
    beat_alone = all(
        window.kind is Kind.NO_LEADER and window.interval.start > row.due_at + 1
        for window in evidence.windows
        if window.with_grace.touches(around)
    )
    return beat_alone and not any(around.start <= at <= around.end for _, at in evidence.ends)


def excused(interval: Interval, windows: Sequence[Window]) -> float:
    holes = (window.with_grace for window in windows)
    return covered(interval.common(hole) for hole in holes if interval.touches(hole))
