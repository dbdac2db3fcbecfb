"""Overlaps foreseen: usual durations against the times of the next ticks.

1. The runs of the next ticks last as long as runs have lasted so far. A tick overlaps if the run
   that it would have to wait for, `max_running` ticks before it, has not ended by then. This is an
   expected number, from the durations in the history; nothing is simulated.
2. All jobs with the same lock or serial queue share its time. The load is the time that their runs
   need a day, as a share of a day: above 1, runs fall behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
DAY = timedelta(days=1)

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


#: A job of these policies starts each tick at last: with too little time, later and later.
FALLING_BEHIND = (OverlapPolicy.QUEUE_ALL, OverlapPolicy.REQUEUE)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens when ticks come sooner than runs end.

    distance: the shortest between two ticks. overlaps: ticks a day that find a run unended; 0 if
    hardly any does. load: of the lock or serial queue, 1 where it is always busy; 0 where nothing
    falls behind. shared_with: the other jobs that have it. safe_interval: rounded up.
    """

    distance: timedelta
    overlaps: float
    load: float
    shared_with: tuple[str, ...]
    safe_interval: timedelta


def by_lock(jobs: Iterable[JobSpec]) -> Mapping[str, Sequence[JobSpec]]:
    """The jobs that have a schedule by the locks that their runs take."""
    found: dict[str, list[JobSpec]] = {}
    for job in jobs:
        for lock in locks_of(job) if job.has_schedule else ():
            found.setdefault(lock, []).append(job)
    return found


def locks_of(job: JobSpec) -> Iterable[str]:
    return {job.lock, job.serial_lock} - {""}


def sharing(spec: JobSpec, locks: Mapping[str, Sequence[JobSpec]]) -> Sequence[JobSpec]:
    """The other jobs with one of its locks, in order of their names."""
    jobs = {job.name: job for lock in locks_of(spec) for job in locks.get(lock, ())}
    return [job for name, job in sorted(jobs.items()) if name != spec.name]


def foresee(
    spec: JobSpec, observed: Mapping[str, Durations], others: Sequence[JobSpec], now: datetime
) -> Forecast | None:
    """None if runs end in time, or were never observed.

    observed: by job, how long its runs took. others: the jobs with which it shares a lock.
    """
    durations = observed.get(spec.name)
    if durations is None or durations.longest is None:
        return None
    ticks = ticks_between(schedule_of(spec), now, now + YEAR, TICKS)
    distance = interval_of(ticks)
    if distance is None:
        return None
    overlaps = overlaps_a_day(spec, durations, ticks, ticks_a_day(spec, now))
    known = [job for job in (spec, *others) if job.name in observed]
    falls_behind = others or spec.overlap in FALLING_BEHIND
    load = sum(load_of(job, observed[job.name], now) for job in known) if falls_behind else 0.0
    if not overlaps and load <= 1:
        return None
    safe = timedelta(seconds=durations.longest) / (spec.most_running or 1)
    names = tuple(job.name for job in others)
    return Forecast(distance, overlaps, load, names, round_up(safe))


def overlaps_a_day(
    spec: JobSpec, durations: Durations, ticks: Sequence[datetime], a_day: float
) -> float:
    """0 where it happens to fewer than one tick in a hundred, and less than once a day."""
    found = sum(found_unended(ticks, first, spec, durations) for first in range(len(ticks)))
    share = found / len(ticks)
    if spec.overlap is OverlapPolicy.SKIP:
        share /= 1 + share  # a tick that is skipped starts no run that others could find
    overlaps = min(1.0, share) * a_day
    return overlaps if overlaps >= min(1.0, a_day / RARE) else 0.0


def found_unended(
    ticks: Sequence[datetime], first: int, spec: JobSpec, durations: Durations
) -> float:
    """How many later ticks are expected to find the run of this one unended."""
    found = 0.0
    for later in ticks[first + (spec.most_running or 1) :]:
        share = durations.share_above((later - ticks[first]).total_seconds())
        if not share:
            break
        found += share
    return found


def ticks_a_day(spec: JobSpec, now: datetime) -> float:
    """The average of the next weeks; of a rarer job, of the next year."""
    for period in (WEEKS, YEAR):
        if ticks := missed_before(schedule_of(spec), now, now + period, keep=0)[0]:
            return float(ticks / period.days)
    return 0.0


def load_of(job: JobSpec, durations: Durations, now: datetime) -> float:
    """The share of a day that its runs need; 0 for a job of which any number may run at once."""
    slots = 1 if job.serial else job.most_running
    if slots is None or job.paused:
        return 0.0
    return durations.mean * ticks_a_day(job, now) / DAY.total_seconds() / slots


def round_up(duration: timedelta) -> timedelta:
    step = next(step for least, step in STEPS if duration >= least)
    return step * math.ceil(duration / step)
