"""How long a job stood still although a run of it was due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.chronicle import Window
from tests.chaos.facts import Facts
from tests.chaos.intervals import Interval, covered
from tests.chaos.jobs import LEASE_TTL

#: A lease runs out, beat looks each second, a worker takes the message.
ALLOWED_SECONDS = LEASE_TTL + 2.0


@dataclass(frozen=True, slots=True)
class Wait:
    """From the end of one execution, or from when the next was due, until the next one's start.

    excused: how much of it lies in windows of faults.
    """

    run: str
    interval: Interval
    excused: float

    @property
    def judged_seconds(self) -> float:
        return self.interval.length - self.excused

    @property
    def is_too_long(self) -> bool:
        return self.judged_seconds > ALLOWED_SECONDS


def waits(facts: Facts) -> Iterator[Wait]:
    """Those that began during the chaos; the work of frozen processes has stopped."""
    due = {row.run: row.due_at for row in facts.rows}
    idle_since = facts.chaos.start
    for execution in facts.executions:
        if execution.attempt == 1:
            since = max(idle_since, due.get(execution.run, idle_since))
        else:
            since = idle_since
        interval = Interval(since, execution.whole.start)
        if interval.length and since < facts.chaos.end:
            yield Wait(execution.run, interval, excused(interval, facts.windows))
        last = execution.at_work[-1] if execution.at_work else execution.whole
        idle_since = max(idle_since, last.end)


def excused(interval: Interval, windows: Sequence[Window]) -> float:
    return covered(interval.common(w.interval) for w in windows if interval.touches(w.interval))
