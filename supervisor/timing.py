"""From a schedule to its nominal times. Time is an argument here: nothing reads the clock.

`every` is a grid over the Unix epoch in UTC. `cron` is read in the job's zone:

- A schedule that matches every hour is *frequent*: it fires whenever the clock on the wall
  matches, so its ticks keep their distance in real time through both clock changes.
- Any other is *fixed*: times that the clock jumps over collapse into one tick at the end of the
  gap, and of a repeated hour the first copy counts. A gap of more than three hours is no daylight
  saving but a zone that changed sides of the date line: what lay in it does not exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim

from supervisor.cron_fields import parse
from supervisor.spec import JobSpec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
DAY = timedelta(days=1)
LONGEST_DST_GAP = timedelta(hours=3)


class Schedule(Protocol):
    """Names instants; aware UTC in and out."""

    def next_after(self, at: datetime) -> datetime | None:
        """The first nominal time strictly after `at`; None when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """The multiples of `step` since the epoch: exact integer arithmetic, so they never drift."""

    step: timedelta

    def next_after(self, at: datetime) -> datetime | None:
        with suppress(OverflowError):
            return EPOCH + self.step * (self.steps_until(at) + 1)
        return None

    def steps_until(self, at: datetime) -> int:
        return (at - EPOCH) // self.step


@dataclass(frozen=True, slots=True)
class Cron:
    """Five cron fields in a zone; `fields` is the expression taken apart."""

    expression: str
    zone: ZoneInfo
    fields: CronSim

    @property
    def is_frequent(self) -> bool:
        return len(self.fields.hours) == 24

    def next_after(self, at: datetime) -> datetime | None:
        return next(self.ticks_after(at), None)

    def ticks_after(self, at: datetime) -> Iterator[datetime]:
        """All nominal times after `at`, until the end of the calendar or 50 years without one."""
        with suppress(OverflowError):
            yield from self._frequent(at) if self.is_frequent else self._fixed(at)

    def ticks_on(self, day: date) -> int:
        """How many times the expression names on a day without a clock change."""
        if day.month not in self.fields.months or not self.fields.match_day(day):
            return 0
        return len(self.fields.hours) * len(self.fields.minutes)

    def _frequent(self, at: datetime) -> Iterator[datetime]:
        zone = UTC if self.zone.key == "UTC" else self.zone
        for tick in CronSim(self.expression, at.astimezone(zone)):
            yield tick.astimezone(UTC)

    def _fixed(self, at: datetime) -> Iterator[datetime]:
        last = at
        for wall in CronSim(self.expression, at.astimezone(self.zone).replace(tzinfo=None)):
            instant, gap = first_instant(wall, self.zone)
            if instant > last and gap <= LONGEST_DST_GAP:
                last = instant
                yield instant


def first_instant(wall: datetime, zone: ZoneInfo) -> tuple[datetime, timedelta]:
    """When the clock on the wall first shows this, or else jumps over it, and the jump's length."""
    before = wall.replace(tzinfo=zone, fold=0)
    instant = before.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant, timedelta()
    gap = wall.replace(tzinfo=zone, fold=1).utcoffset() - before.utcoffset()  # type: ignore[operator]
    return _clock_change(instant - gap, instant, zone), gap


def _clock_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The first second of the new offset, which is in (before, after]: bisection."""
    old = before.astimezone(zone).utcoffset()
    seconds = round((after - before).total_seconds())
    low, high = 0, seconds
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)


def schedule_of(spec: JobSpec) -> Schedule:
    """The schedule of a job; InvalidSchedule says what is wrong with its `cron`."""
    return _schedule(*spec.when)


@lru_cache(maxsize=20_000)
def _schedule(cron: str | None, every: timedelta | None, timezone: str) -> Schedule:
    if every is not None:
        return Every(every)
    assert cron is not None, "JobSpec has exactly one of the two"
    expression, fields = parse(cron)
    return Cron(expression, ZoneInfo(timezone), fields)


def ticks_between(
    schedule: Schedule, after: datetime, until: datetime, limit: int
) -> list[datetime]:
    """The first `limit` nominal times in (after, until]."""
    return list(islice(takewhile(lambda tick: tick <= until, ticks_after(schedule, after)), limit))


def _ticks_within(schedule: Schedule, after: datetime, until: datetime) -> list[datetime]:
    return list(takewhile(lambda tick: tick <= until, ticks_after(schedule, after)))


def ticks_after(schedule: Schedule, at: datetime) -> Iterator[datetime]:
    """All nominal times strictly after `at`."""
    if isinstance(schedule, Cron):
        yield from schedule.ticks_after(at)
        return
    while (tick := schedule.next_after(at)) is not None:
        yield tick
        at = tick


def missed_before(
    schedule: Schedule, after: datetime, until: datetime, keep: int
) -> tuple[int, list[datetime]]:
    """How many nominal times lie in (after, until], and the last `keep` of them in order.

    `every` is arithmetic. For cron the days are gone through backwards: a whole day without a clock
    change has hours x minutes ticks or none, so only the days whose ticks are kept, the two
    days at the ends and those of clock changes are walked. A year of minutely ticks costs
    milliseconds.
    """
    if until <= after:
        return 0, []
    if isinstance(schedule, Every):
        return _missed_every(schedule, after, until, keep)
    if isinstance(schedule, Cron):
        return _missed_cron(schedule, after, until, keep)
    kept: deque[datetime] = deque(maxlen=keep)
    count = 0
    for tick in takewhile(lambda tick: tick <= until, ticks_after(schedule, after)):
        kept.append(tick)
        count += 1
    return count, list(kept)


def _missed_every(
    every: Every, after: datetime, until: datetime, keep: int
) -> tuple[int, list[datetime]]:
    last = every.steps_until(until)
    count = last - every.steps_until(after)
    kept = min(count, keep)
    return count, [EPOCH + every.step * step for step in range(last - kept + 1, last + 1)]


def _missed_cron(
    cron: Cron, after: datetime, until: datetime, keep: int
) -> tuple[int, list[datetime]]:
    count, kept = 0, deque[datetime]()
    for day, start, end in _days_back(cron.zone, after, until):
        whole = after <= start and end <= until and _is_plain(start, end, cron.zone)
        if whole and len(kept) >= keep:
            count += cron.ticks_on(day)
        elif start < until and end > after and not (whole and cron.ticks_on(day) == 0):
            first, last = max(after, start), min(until, end)
            ticks = _ticks_within(cron, first, last)
            count += len(ticks)
            kept.extendleft(reversed(ticks[max(0, len(ticks) - (keep - len(kept))) :]))
    return count, list(kept)


def _days_back(
    zone: ZoneInfo, after: datetime, until: datetime
) -> Iterator[tuple[date, datetime, datetime]]:
    """The local days that touch (after, until], last first, each as (day, start, end]."""
    # A day more: where clocks go back at midnight, `until` may be in the date's second coming.
    day = until.astimezone(zone).date() + DAY
    first = after.astimezone(zone).date()
    end = _midnight(day + DAY, zone) - INSTANT
    while day >= first:
        start = _midnight(day, zone) - INSTANT
        yield day, start, end
        day, end = day - DAY, start


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return first_instant(datetime(day.year, day.month, day.day), zone)[0]


def _is_plain(start: datetime, end: datetime, zone: ZoneInfo) -> bool:
    """No clock change from the last instant of the day before to the first of the day after."""
    return start.astimezone(zone).utcoffset() == (end + INSTANT).astimezone(zone).utcoffset()
