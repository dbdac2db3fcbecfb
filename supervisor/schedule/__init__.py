"""From a job to its nominal times. Time is an argument here: nothing reads the clock.

A schedule is made of layers, each of which is asked the same question, what comes next after an
instant:

1. The times that the job names: `every` and `at`, or local times from `cron` (cron.py) and
   `rrule` (rrule.py), which clock_times.py turns into instants, and joins for several `cron` lines.
2. `start_at` and `end_at`.
3. `exclude`: an excluded tick is no tick of the schedule.
4. `jitter`: the shifted instants are the ticks, and their identities.

`every`, `at` and the layers above them are in layers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from supervisor.job.spec import KEPT_AT_HAND, JobSpec
from supervisor.job.when import When
from supervisor.schedule.clock_times import AS_A_RULE, ClockTimes, JoinedTimes, Pattern
from supervisor.schedule.cron import CronPattern
from supervisor.schedule.cron import parse as parse_cron
from supervisor.schedule.layers import Bounded, Every, Instants, Jittered, excluding
from supervisor.schedule.rrule import parse as parse_rrule
from supervisor.schedule.rrule import rule_pattern
from supervisor.schedule.windows import Schedule, missed_before, ticks_after, ticks_between
from supervisor.times import EPOCH, instant

__all__ = [
    "EPOCH",
    "Schedule",
    "is_fixed",
    "missed_before",
    "schedule_of",
    "ticks_after",
    "ticks_between",
]


def schedule_of(spec: JobSpec) -> Schedule:
    """The schedule of a job; InvalidSchedule says what is wrong with its `cron` or `rrule`."""
    return _schedule(spec.when, spec.name if spec.jitter else "")


def is_fixed(spec: JobSpec) -> bool:
    """Whether the job has times of the clock that `dst` can say something about."""
    return any(not pattern.is_frequent for pattern in _patterns(spec))


@lru_cache(maxsize=KEPT_AT_HAND)
def _schedule(values: tuple[Any, ...], name: str) -> Schedule:
    when = When.model_construct(**dict(zip(When.model_fields, values, strict=True)))
    zone = when.zone
    start, end = (moment and instant(moment, zone) for moment in (when.start_at, when.end_at))
    schedule: Schedule = _named(when)
    if start or end:
        schedule = Bounded(schedule, start, end)
    if when.exclude:
        schedule = excluding(schedule, when.exclude, zone)
    if when.jitter:
        schedule = Jittered(schedule, when.jitter, name, end)
    return schedule


def _named(when: When) -> Schedule:
    if not when.has_schedule:
        return Instants(())
    if when.every is not None:
        return Every(when.every, when.phase or when.every * 0)
    if when.at is not None:
        return Instants(tuple(instant(moment, when.zone) for moment in when.at))
    times = [ClockTimes(found, when.zone, when.dst or AS_A_RULE) for found in _patterns(when)]
    return times[0] if len(times) == 1 else JoinedTimes(tuple(times))


def _patterns(when: When) -> Sequence[Pattern]:
    """Several of a `cron` with several lines; none for times that are not those of clocks."""
    if when.rrule is not None:
        start = when.start_at and instant(when.start_at, when.zone)
        return [rule_pattern(parse_rrule(when.rrule), start, when.zone)]
    return [CronPattern(parse_cron(line)) for line in when.cron_lines]
