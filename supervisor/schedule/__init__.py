"""From a job to its nominal times. Time is an argument here: nothing reads the clock.

A schedule is made of layers, each of which is asked the same question, what comes next after an
instant:

1. The times that the job names: `every` and `at`, or local times from `cron` (cron.py) and
   `rrule` (rrule.py), which clock_times.py turns into instants, and joins for several `cron` lines.
2. `start_at` and `end_at`.
3. `exclude`: an excluded tick is no tick of the schedule.
4. `jitter`: the shifted instants are the ticks, and their identities.

`every` and `at` are schedules by themselves; bounds, exclusions and jitter lie over any other.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from supervisor.job.exclusions import merged, parse
from supervisor.job.spec import KEPT_AT_HAND, JobSpec
from supervisor.job.when import When
from supervisor.schedule.clock_times import (
    AS_A_RULE,
    HORIZON,
    SECOND,
    ClockTimes,
    JoinedTimes,
    Pattern,
)
from supervisor.schedule.cron import CronPattern
from supervisor.schedule.cron import parse as parse_cron
from supervisor.schedule.rrule import parse as parse_rrule
from supervisor.schedule.rrule import rule_pattern
from supervisor.times import DAY, EPOCH, INSTANT, in_utc, midnight, reading


class Schedule(Protocol):
    """Names instants; aware UTC in and out."""

    def next_after(self, at: datetime) -> datetime | None:
        """The first nominal time strictly after `at`; None when there is none."""
        ...

    def count(self, after: datetime, until: datetime) -> int:
        """How many nominal times lie in (after, until], without going through them."""
        ...


#: Up to this many ticks more than requested are walked through rather than searched for.
CHEAP = 10


def ticks_between(
    schedule: Schedule, after: datetime, until: datetime, limit: int
) -> list[datetime]:
    """The first `limit` nominal times in (after, until]."""
    return list(islice(_walk(schedule, after, until), limit))


def missed_before(
    schedule: Schedule, after: datetime, until: datetime, keep: int
) -> tuple[int, list[datetime]]:
    """How many nominal times lie in (after, until], and the last `keep` of them in order.

    A year of minutely ticks costs milliseconds: they are counted, and only those kept are walked.
    """
    count = count_between(schedule, after, until)
    return count, last_between(schedule, after, until, min(keep, count))


def count_between(schedule: Schedule, after: datetime, until: datetime) -> int:
    return schedule.count(after, until) if until > after else 0


def last_between(schedule: Schedule, after: datetime, until: datetime, keep: int) -> list[datetime]:
    """The last `keep` nominal times in (after, until], or all if they are fewer.

    The span before `until` is doubled until it holds enough, then halved while it holds far more.
    """
    if keep == 0:
        return []
    too_short, span = timedelta(), timedelta(minutes=1)
    while span < until - after and count_between(schedule, until - span, until) < keep:
        too_short, span = span, span * 2
    span = min(span, until - after)
    while span - too_short > timedelta(seconds=1):
        middle = too_short + (span - too_short) / 2
        count = count_between(schedule, until - middle, until)
        if count < keep:
            too_short = middle
        else:
            span = middle
            if count <= keep + CHEAP:
                break
    return list(deque(_walk(schedule, until - span, until), maxlen=keep))


def _walk(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    return takewhile(lambda tick: tick <= until, ticks_after(schedule, after))


def ticks_after(schedule: Schedule, at: datetime) -> Iterator[datetime]:
    """All nominal times strictly after `at`."""
    if isinstance(schedule, ClockTimes | JoinedTimes):
        yield from schedule.ticks_after(at)
        return
    while (tick := schedule.next_after(at)) is not None:
        yield tick
        at = tick


def schedule_of(spec: JobSpec) -> Schedule:
    """The schedule of a job; InvalidSchedule says what is wrong with its `cron` or `rrule`."""
    return _schedule(spec.when, spec.name if spec.jitter else "")


def is_fixed(spec: JobSpec) -> bool:
    """Whether the job has fixed times of the clock, which `dst` is about."""
    return any(not pattern.is_frequent for pattern in _patterns(spec))


@lru_cache(maxsize=KEPT_AT_HAND)
def _schedule(values: tuple[Any, ...], name: str) -> Schedule:
    when = When.model_construct(**dict(zip(When.model_fields, values, strict=True)))
    zone = when.zone
    start, end = (moment and in_utc(moment, zone) for moment in (when.start_at, when.end_at))
    schedule: Schedule = _named(when)
    if start or end:
        schedule = Bounded(schedule, start, end)
    if when.exclude:
        schedule = Excluding(schedule, *_excluded(when.exclude, zone), zone)
    if when.jitter:
        schedule = Jittered(schedule, when.jitter, name, end)
    return schedule


def _named(when: When) -> Schedule:
    if not when.has_schedule:
        return Instants(())
    if when.every is not None:
        return Every(when.every, when.phase or when.every * 0)
    if when.at is not None:
        return Instants(tuple(in_utc(moment, when.zone) for moment in when.at))
    times = [ClockTimes(pattern, when.zone, when.dst or AS_A_RULE) for pattern in _patterns(when)]
    return times[0] if len(times) == 1 else JoinedTimes(tuple(times))


def _patterns(when: When) -> Sequence[Pattern]:
    """Several of a `cron` with several lines; none for times that are not those of clocks."""
    if when.rrule is not None:
        start = when.start_at and in_utc(when.start_at, when.zone)
        return [rule_pattern(parse_rrule(when.rrule), start, when.zone)]
    return [CronPattern(parse_cron(line)) for line in when.cron_lines]


# What lies over a rule: bounds, exclusions, jitter, and the grid of `every`.


@dataclass(frozen=True, slots=True)
class Bounded:
    """The times of `schedule` from `start` on, inclusive, and before `end`."""

    schedule: Schedule
    start: datetime | None
    end: datetime | None

    def next_after(self, at: datetime) -> datetime | None:
        tick = self.schedule.next_after(self._from(at))
        return None if tick is None or (self.end and tick >= self.end) else tick

    def count(self, after: datetime, until: datetime) -> int:
        last = min(until, self.end - INSTANT) if self.end else until
        return count_between(self.schedule, self._from(after), last)

    def _from(self, at: datetime) -> datetime:
        return max(at, self.start - INSTANT) if self.start else at


# `exclude`: a schedule without the times that lie on excluded days.


END_OF_CALENDAR = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Excluding:
    """The times of `schedule` that are on no excluded day and in no excluded span."""

    schedule: Schedule
    weekdays: frozenset[int]
    """Of `zone`."""

    starts: Sequence[datetime]
    """Of the excluded spans, which do not touch."""

    ends: Sequence[datetime]
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime | None:
        limit: datetime | None = None
        with suppress(OverflowError):
            while (tick := self.schedule.next_after(at)) is not None:
                limit = limit or tick + HORIZON
                if (free := self._free_from(tick)) == tick:
                    return tick
                if free > limit:
                    break
                at = free - INSTANT
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """The instants of each span between two exclusions."""
        count, start = 0, self._free_from(after + INSTANT)
        while start <= until:
            end = self._excluded_from(start)
            count += count_between(self.schedule, start - INSTANT, min(until, end - INSTANT))
            if end > until:
                break
            start = self._free_from(end)
        return count

    def _free_from(self, at: datetime) -> datetime:
        """The first instant from `at` on that is not excluded."""
        while True:
            index = bisect_right(self.starts, at) - 1
            if index >= 0 and at < self.ends[index]:
                at = self.ends[index]
            elif self.weekdays and at.astimezone(self.zone).weekday() in self.weekdays:
                at = self._midnight_after(at, 1)
            else:
                return at

    def _excluded_from(self, at: datetime) -> datetime:
        """The first excluded instant after `at`, which is none."""
        index = bisect_right(self.starts, at)
        span = self.starts[index] if index < len(self.starts) else END_OF_CALENDAR
        if not self.weekdays:
            return span
        today = at.astimezone(self.zone).weekday()
        days = min((weekday - today) % 7 for weekday in self.weekdays)
        return min(span, self._midnight_after(at, days))

    def _midnight_after(self, at: datetime, days: int) -> datetime:
        """The midnight `days` later. Where clocks go back over midnight, both midnights count."""
        day = at.astimezone(self.zone).date() + days * DAY
        shown = reading(datetime(day.year, day.month, day.day), self.zone)
        return shown.first if shown.first > at else shown.second


@lru_cache(maxsize=1024)
def _excluded(
    texts: tuple[str, ...], zone: ZoneInfo
) -> tuple[frozenset[int], Sequence[datetime], Sequence[datetime]]:
    """What `exclude` excludes: weekdays, and the starts and ends of spans. Jobs share calendars."""
    exclusions = parse(texts)
    days = [(midnight(first, zone), _end_of(last, zone)) for first, last in exclusions.days]
    times = [(in_utc(start, zone), in_utc(end, zone)) for start, end in exclusions.times]
    spans = merged([*days, *times])
    starts, ends = (tuple(each[i] for each in spans) for i in (0, 1))
    return exclusions.weekdays, starts, ends


def _end_of(day: date, zone: ZoneInfo) -> datetime:
    return midnight(day + DAY, zone) if day < date.max else END_OF_CALENDAR


# `every`: a grid over the Unix epoch in UTC, so that neither restarts nor clocks move it.


@dataclass(frozen=True, slots=True)
class Every:
    """`phase` after the multiples of `step`: exact integer arithmetic, so they never drift."""

    step: timedelta
    phase: timedelta = timedelta()

    def next_after(self, at: datetime) -> datetime | None:
        try:
            return EPOCH + self.phase + self.step * (self._steps_until(at) + 1)
        except OverflowError:
            return None

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, self._steps_until(until) - self._steps_until(after))

    def _steps_until(self, at: datetime) -> int:
        return (at - EPOCH - self.phase) // self.step


# `at`: a list of instants.


@dataclass(frozen=True, slots=True)
class Instants:
    """Instants in order, none of them twice."""

    instants: tuple[datetime, ...]

    def next_after(self, at: datetime) -> datetime | None:
        index = bisect_right(self.instants, at)
        return self.instants[index] if index < len(self.instants) else None

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, bisect_right(self.instants, until) - bisect_right(self.instants, after))


# `jitter`: each tick is shifted by a constant of its own, and the shifted instant is the tick.
#
# The shift is a hash of the job's name and of the time that the schedule names, in whole seconds.
# It is shorter than the way to the next time, so ticks stay in order and none is lost. Beat,
# workers and `plan` compute the same instants without having to remember anything.
#
# That the shifted instant is the tick's identity keeps the rest simple: a tick is due at its
# nominal time, the watermark is the last nominal time dealt with, and both are read from one clock.


@dataclass(frozen=True, slots=True)
class Jittered:
    """The times of `schedule`, each later by its own constant."""

    schedule: Schedule
    longest: timedelta
    name: str
    end: datetime | None = None
    """That of the job, which a shifted tick does not pass either."""

    def next_after(self, at: datetime) -> datetime | None:
        before = last_between(self.schedule, at - self.longest - SECOND, at, keep=1)
        if before and (shifted := self._shifted(before[0])) > at:
            return shifted
        tick = self.schedule.next_after(at)
        return self._shifted(tick) if tick is not None else None

    def count(self, after: datetime, until: datetime) -> int:
        """The times of the schedule, less or plus one at each end that is shifted out or in."""
        named = count_between(self.schedule, after, until)
        return named + self._shifted_past(after) - self._shifted_past(until)

    def _shifted_past(self, at: datetime) -> bool:
        before = last_between(self.schedule, at - self.longest - SECOND, at, keep=1)
        return bool(before) and self._shifted(before[0]) > at

    def _shifted(self, tick: datetime) -> datetime:
        limits = [self.longest // SECOND]
        limits += [
            -(-(limit - tick) // SECOND) - 1
            for limit in (self.schedule.next_after(tick), self.end)
            if limit is not None
        ]
        digest = hashlib.sha256(f"{self.name}@{tick.isoformat()}".encode()).digest()
        return tick + int.from_bytes(digest[:8]) % (min(limits) + 1) * SECOND
