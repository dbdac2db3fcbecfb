"""By when the run of a tick has to have succeeded, as the job's `due_by` says.

1. Each tick has a deadline: the first time after it that the zone's clock shows `due_by`, or that
   long after it. A tick at that very time of day has until the next day. A time that the clock
   jumps over is the end of the gap; of one that it shows twice, the first counts.
2. A success answers the ticks up to its start, whichever run it was: that of a later tick, or one
   triggered by hand. Ticks before the job was loaded, and up to the end of its last pause, are
   answered too.
3. The job is overdue once the deadline of the first tick that is not answered has passed.

Excluded times are no ticks; one that was skipped or missed is due like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import assert_never
from zoneinfo import ZoneInfo

from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of
from supervisor.schedule.clock_times import ClockTimes
from supervisor.schedule.cron import CronPattern
from supervisor.schedule.cron import parse as parse_cron
from supervisor.times import plus


@dataclass(frozen=True, slots=True)
class Deadline:
    """By when a run has to have succeeded after which tick."""

    tick: datetime
    at: datetime


def due_at(spec: JobSpec, tick: datetime) -> datetime | None:
    """The deadline of a tick; None for a job without `due_by`, and beyond the calendar."""
    match spec.due_by:
        case None:
            return None
        case time() as clock:
            return _daily(clock, spec.timezone).next_after(tick)
        case timedelta() as duration:
            return plus(tick, duration)
        case _:
            assert_never(spec.due_by)


def next_deadline(spec: JobSpec, answered_until: datetime | None) -> Deadline | None:
    """The deadline of the first tick after this. None if nothing is due, or nothing is known."""
    if spec.due_by is None or answered_until is None or not spec.has_schedule:
        return None
    tick = schedule_of(spec).next_after(answered_until)
    at = tick and due_at(spec, tick)
    return Deadline(tick, at) if tick and at else None


def next_due_at(spec: JobSpec, answered_until: datetime | None) -> datetime | None:
    deadline = next_deadline(spec, answered_until)
    return deadline.at if deadline else None


@lru_cache(maxsize=1_000)
def _daily(clock: time, timezone: str) -> ClockTimes:
    return ClockTimes(CronPattern(parse_cron(f"{clock:%M %H} * * *")), ZoneInfo(timezone))
