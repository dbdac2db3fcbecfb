"""Overlaps foreseen: usual durations against the times of the next ticks.

The runs of the next ticks last as long as runs have lasted so far. A tick overlaps if the run that
it would have to wait for, `max_running` ticks before it, has not ended by then. This is an expected
number, from the durations in the history; nothing is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.job.durations import Durations
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.schedule import missed_before, schedule_of, ticks_between
from supervisor.schedule.expectations import interval_of

#: How many ticks are looked at, within a year.
TICKS = 200
YEAR = timedelta(days=365)

#: The time over which the ticks of a day are averaged.
WEEKS = timedelta(days=28)

#: Worth reporting is what happens to one tick in this many, or to one a day.
RARE = 100

#: Intervals are rounded up to such steps: the step for intervals from this length on.
STEPS = (
    (timedelta(hours=6), timedelta(hours=1)),
    (timedelta(hours=1), timedelta(minutes=15)),
    (timedelta(minutes=1), timedelta(minutes=1)),
    (timedelta(), timedelta(seconds=5)),
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens when ticks come sooner than runs end."""

    distance: timedelta
    """The shortest between two ticks."""

    overlaps: float
    """Ticks a day that find a run unended."""

    safe_interval: timedelta
    """At which no tick would, rounded up."""


def foresee(spec: JobSpec, durations: Durations, now: datetime) -> Forecast | None:
    """None if runs end in time, or were never observed. durations: how long runs took so far."""
    if durations.longest is None:
        return None
    ticks = ticks_between(schedule_of(spec), now, now + YEAR, TICKS)
    distance = interval_of(ticks)
    if distance is None:
        return None
    overlaps = overlaps_a_day(spec, durations, ticks, ticks_a_day(spec, now))
    if not overlaps:
        return None
    safe = timedelta(seconds=durations.longest) / (spec.most_running or 1)
    return Forecast(distance, overlaps, round_up(safe))


def overlaps_a_day(
    spec: JobSpec, durations: Durations, ticks: Sequence[datetime], a_day: float
) -> float:
    """0 where it happens to fewer than one tick in a hundred, and less than once a day."""
    count = sum(ticks_that_overlap(ticks, first, spec, durations) for first in range(len(ticks)))
    share = count / len(ticks)
    if spec.overlap is OverlapPolicy.SKIP:
        share /= 1 + share  # a tick that is skipped starts no run that others could find
    overlaps = min(1.0, share) * a_day
    return overlaps if overlaps >= min(1.0, a_day / RARE) else 0.0


def ticks_that_overlap(
    ticks: Sequence[datetime], first: int, spec: JobSpec, durations: Durations
) -> float:
    """How many later ticks are expected to come before the run of this one has ended."""
    count = 0.0
    for later in ticks[first + (spec.most_running or 1) :]:
        share = durations.share_above((later - ticks[first]).total_seconds())
        if not share:
            break
        count += share
    return count


def ticks_a_day(spec: JobSpec, now: datetime) -> float:
    """The average of the next weeks; of a rarer job, of the next year."""
    for period in (WEEKS, YEAR):
        if ticks := missed_before(schedule_of(spec), now, now + period, keep=0)[0]:
            return float(ticks / period.days)
    return 0.0


def round_up(duration: timedelta) -> timedelta:
    step = next(step for least, step in STEPS if duration >= least)
    return step * math.ceil(duration / step)
