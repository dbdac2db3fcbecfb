"""What the schedule of a job says of one instant: is it a tick, and what lies next to it."""

from __future__ import annotations

from datetime import datetime, timedelta

from supervisor.job.spec import JobSpec
from supervisor.plan.clock_changes import Surprise, surprises
from supervisor.plan.upcoming import excluded
from supervisor.timing import Schedule, missed_before, schedule_of
from supervisor.why.facts import Calendar

INSTANT = timedelta(microseconds=1)
DAY = timedelta(days=1)

#: How far back the tick before is looked for, step by step.
LOOKS_BACK = (timedelta(hours=1), DAY, 40 * DAY, 800 * DAY)


def calendar_of(spec: JobSpec, at: datetime) -> Calendar:
    schedule = schedule_of(spec)
    following = schedule.next_after(at - INSTANT)
    is_tick = following == at
    return Calendar(
        is_tick=is_tick,
        before=tick_before(schedule, at),
        after=schedule.next_after(at) if is_tick else following,
        excluded=not is_tick and at in excluded(spec, at - INSTANT, at),
        surprise=surprise_at(spec, at),
    )


def tick_before(schedule: Schedule, at: datetime) -> datetime | None:
    """The last tick before `at`; None when there is none in two years."""
    for distance in LOOKS_BACK:
        _, last = missed_before(schedule, at - distance, at - INSTANT, keep=1)
        if last:
            return last[0]
    return None


def surprise_at(spec: JobSpec, at: datetime) -> Surprise | None:
    """What a clock change near `at` did to a tick of that time of the clock."""
    wall = at.astimezone(spec.zone).replace(tzinfo=None, fold=0)
    return next(
        (
            surprise
            for surprise in surprises(spec, at - DAY, at + DAY)
            if wall in (*surprise.times, *surprise.runs_at)
        ),
        None,
    )
