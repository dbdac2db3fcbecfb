"""Which time is meant: a run's id, a time of the clock, or a full instant."""

from __future__ import annotations

from datetime import datetime, timedelta

from supervisor.job.spec import JobSpec
from supervisor.times.moments import clock_time
from supervisor.timing import schedule_of, ticks_between

INSTANT = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)


def nominal_time(text: str, spec: JobSpec, now: datetime) -> datetime:
    """The tick that `text` names; if it names none, the very instant. Raises ValueError.

    A time of the clock is today's, or the last such. A time without seconds also stands for the
    one tick in its minute, which `phase` or `jitter` may have moved off its beginning.
    """
    at = clock_time(text, spec.zone, now, ahead=False)
    if at.second or at.microsecond or not spec.has_schedule:
        return at
    ticks = ticks_between(schedule_of(spec), at - INSTANT, at + MINUTE - INSTANT, 2)
    return ticks[0] if len(ticks) == 1 else at
