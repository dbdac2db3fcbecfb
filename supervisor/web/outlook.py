"""What to expect of all jobs, remembered from scrape to scrape as long as nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.job.spec import JobSpec
from supervisor.ledger.histograms import Histogram
from supervisor.ledger.replies import instant
from supervisor.ticks.expectations import (
    SLACK,
    interval_of,
    late_after,
    next_ticks,
    running_limit,
    usual_duration,
    work_until_success,
)
from supervisor.timing import schedule_of
from supervisor.web.status import Status

MOST_GONE = 1_000


@dataclass(frozen=True, slots=True)
class Outlook:
    interval: timedelta | None
    late_after: timedelta
    running_limit: timedelta | None
    success_by: datetime | None


@dataclass(slots=True)
class Memory:
    """Of one job: its next ticks as of some time ago, and the first tick after an instant in ms."""

    spec: JobSpec
    ticks: tuple[datetime, ...]
    interval: timedelta | None
    after: int = 0
    due: datetime | None = None


class Outlooks:
    def __init__(self) -> None:
        self._memory: dict[str, Memory] = {}

    def of(self, spec: JobSpec, durations: Histogram, status: Status, now: datetime) -> Outlook:
        memory = self._remembered(spec, now)
        usual = usual_duration(spec, durations, memory.interval)
        late = late_after(spec, memory.interval, usual)
        due = None if status.paused else due_tick(memory, status.success_due_after)
        return Outlook(
            interval=memory.interval,
            late_after=late,
            running_limit=running_limit(spec, durations),
            success_by=due and due + late + work_until_success(spec, usual) + SLACK,
        )

    def forget_all_but(self, jobs: int) -> None:
        """Jobs come and go; what is remembered of those that went is dropped with all the rest."""
        if len(self._memory) > 2 * jobs + MOST_GONE:
            self._memory.clear()

    def _remembered(self, spec: JobSpec, now: datetime) -> Memory:
        """The ticks are looked up anew when the job was edited, or the last of them has passed."""
        known = self._memory.get(spec.name)
        if known is None or known.spec is not spec or (known.ticks and known.ticks[-1] <= now):
            ticks = next_ticks(spec, now)
            known = self._memory[spec.name] = Memory(spec, ticks, interval_of(ticks))
        return known


def due_tick(memory: Memory, after: int) -> datetime | None:
    """The first after this instant in ms."""
    if not after or not memory.spec.has_schedule:
        return None
    if memory.after != after:
        memory.after, memory.due = after, schedule_of(memory.spec).next_after(instant(after))
    return memory.due
