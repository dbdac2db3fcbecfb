"""Which time is meant: a run's id, a time of the clock, or a full instant."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from supervisor.job.spec import JobSpec
from supervisor.times.clock import first_instant
from supervisor.times.moments import instant
from supervisor.timing import schedule_of, ticks_between

#: ``09:05``, ``9:05:30``
CLOCK_TIME = re.compile(r"^(\d{1,2}):(\d\d)(?::(\d\d))?$")

INSTANT = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def nominal_time(text: str, spec: JobSpec, now: datetime) -> datetime:
    """The tick that `text` names; if it names none, the very instant. Raises ValueError.

    A time of the clock is today's, or the last such. A time without seconds also stands for the
    one tick in its minute, which `phase` or `jitter` may have moved off its beginning.
    """
    at = moment(text, spec.zone, now)
    if at.second or at.microsecond or not spec.has_schedule:
        return at
    ticks = ticks_between(schedule_of(spec), at - INSTANT, at + MINUTE - INSTANT, 2)
    return ticks[0] if len(ticks) == 1 else at


def moment(text: str, zone: ZoneInfo, now: datetime) -> datetime:
    found = CLOCK_TIME.match(text)
    if found is None:
        return instant(datetime.fromisoformat(text), zone)
    hour, minute, second = (int(part or 0) for part in found.groups())
    today = now.astimezone(zone).replace(tzinfo=None, microsecond=0)
    wall = today.replace(hour=hour, minute=minute, second=second)
    at = first_instant(wall, zone)
    return at if at <= now else first_instant(wall - DAY, zone)
