"""How far apart a job's ticks are, for comparing with how long its runs take."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise

from supervisor.spec import JobSpec
from supervisor.timing import schedule_of
from supervisor.timing.windows import ticks_after

#: The next ticks that are looked at: a working week of a daily job, and the weekend in it.
LOOKED_AT = 8


def interval_of(spec: JobSpec, now: datetime) -> timedelta | None:
    """The shortest distance between the next ticks; None when there are none to come."""
    if not spec.has_schedule:
        return None
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return _interval(Schedule(spec), day)


class Schedule:
    """A spec that is the same as any other with the same times."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self._identity = (spec.name, spec.when)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@lru_cache(maxsize=20_000)
def _interval(schedule: Schedule, after: datetime) -> timedelta | None:
    ticks = islice(ticks_after(schedule_of(schedule.spec), after), LOOKED_AT)
    return min((later - tick for tick, later in pairwise(ticks)), default=None)
