"""What clock changes do to a job: its nominal times beside a naive reading of its schedule.

The naive reading is the same schedule in a zone without clock changes: the times that its author
had in mind. Where clocks are put forward, some of them do not exist; where they are put back, some
come twice. What becomes of each is seen from the schedule itself, and not deduced from rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, is_fixed, schedule_of, ticks_between
from supervisor.times import DAY, INSTANT, offset_change

#: How many ticks in the hours around a clock change are looked at.
MOST_TICKS = 20_000


@dataclass(frozen=True, slots=True)
class ZoneChange:
    """At `at` the clocks of a zone go from one offset to another."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def size(self) -> timedelta:
        return abs(self.after - self.before)

    @property
    def first_local(self) -> datetime:
        """From here to `size` later, local times do not exist, or come twice."""
        offset = self.before if self.is_gap else self.after
        return (self.at + offset).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """Local times of a job that a clock change treats alike."""

    zone: str
    times: tuple[datetime, ...]
    is_gap: bool
    runs_at: tuple[datetime, ...] = ()
    """When the runs of times that do not exist are instead."""

    first: bool = False
    """Whether times that come twice run the first time."""

    second: bool = False
    """Whether they run the second time."""


def clock_changes(spec: JobSpec, after: datetime, until: datetime) -> list[ClockChange]:
    """What the clock changes in (after, until] do to the times of a job."""
    if not is_fixed(spec):  # it keeps its distance in real time
        return []
    plain = spec.model_copy(update={"jitter": None})  # it is added whatever the clocks show
    naive, real = schedule_of(plain.model_copy(update={"timezone": "UTC"})), schedule_of(plain)
    if naive == real:  # the schedule does not depend on local time
        return []
    changes = zone_changes(spec.timezone, after.date(), until.date())
    return [
        each
        for change in changes
        if after < change.at <= until
        for each in clock_changes_of(change, naive, real, spec.zone)
    ]


def clock_changes_of(
    change: ZoneChange, naive: Schedule, real: Schedule, zone: ZoneInfo
) -> Iterator[ClockChange]:
    start = change.first_local.replace(tzinfo=UTC)
    times = [tick.replace(tzinfo=None) for tick in ticks_from(naive, start, start + change.size)]
    if not times:
        return
    if change.is_gap:
        yield ClockChange(zone.key, tuple(times), True, moved(change, naive, real, zone))
        return
    earlier = set(local_times(real, change.at - change.size, change.at, zone))
    later = set(local_times(real, change.at, change.at + change.size, zone))
    for first, second in ((True, True), (True, False), (False, True), (False, False)):
        alike = [at for at in times if (at in earlier, at in later) == (first, second)]
        if alike:
            yield ClockChange(zone.key, tuple(alike), False, (), first, second)


def moved(
    change: ZoneChange, naive: Schedule, real: Schedule, zone: ZoneInfo
) -> tuple[datetime, ...]:
    """The times near the gap at which the job runs and which its naive reading does not name."""
    start = change.first_local.replace(tzinfo=UTC)
    meant = ticks_from(naive, start - change.size, start + 2 * change.size)
    runs = local_times(real, change.at - change.size, change.at + change.size, zone)
    named = {tick.replace(tzinfo=None) for tick in meant}
    return tuple(at for at in runs if at not in named)


def local_times(
    schedule: Schedule, start: datetime, end: datetime, zone: ZoneInfo
) -> list[datetime]:
    return [
        t.astimezone(zone).replace(tzinfo=None, fold=0) for t in ticks_from(schedule, start, end)
    ]


def ticks_from(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """The nominal times in [start, end)."""
    return ticks_between(schedule, start - INSTANT, end - INSTANT, MOST_TICKS)


@lru_cache(maxsize=1_000)
def zone_changes(zone: str, first: date, last: date) -> Sequence[ZoneChange]:
    """The clock changes of a zone on these days (in UTC), in order."""
    place = ZoneInfo(zone)
    start = datetime(first.year, first.month, first.day, tzinfo=UTC)
    days = [start + DAY * number for number in range((last - first).days + 2)]
    return tuple(
        ZoneChange(offset_change(before, after, place), old, new)
        for before, after in pairwise(days)
        if (old := offset_at(before, place)) != (new := offset_at(after, place))
    )


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
