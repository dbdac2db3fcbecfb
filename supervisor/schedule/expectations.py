"""What can be expected of a job: how late it starts, how long it runs, by when it succeeds.

Pure functions of its spec, of what was observed, and of its ticks. Alerts compare with them;
docs/reference/metrics.md explains the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice, pairwise

from supervisor.job.durations import Durations
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of, ticks_after

#: How many of the next ticks are looked at.
TICKS = 10

#: How late a start may be: this share of the interval, within these bounds.
LATE_SHARE = 0.1
LATE_LEAST = timedelta(seconds=30)
LATE_MOST = timedelta(minutes=15)

#: How long a run is assumed to take; the interval, if that is shorter.
UNKNOWN_DURATION = timedelta(hours=1)

#: For everything else that takes time: a rescue, a scrape.
SLACK = timedelta(minutes=1)

#: How many times as long as usual is too long.
TOO_LONG = 4

#: Where the usual duration is only observed, no shorter run is too long.
TOO_LONG_LEAST = timedelta(minutes=1)

#: The longest that a success is waited for, whatever the retries.
LONGEST = timedelta(days=366)

MAY_WAIT = (
    OverlapPolicy.QUEUE_ONE,
    OverlapPolicy.QUEUE_ALL,
    OverlapPolicy.REQUEUE,
    OverlapPolicy.REPLACE,
)


def next_ticks(spec: JobSpec, now: datetime, count: int = TICKS) -> tuple[datetime, ...]:
    if not spec.has_schedule:
        return ()
    return tuple(islice(ticks_after(schedule_of(spec), now), count))


def interval_of(ticks: Sequence[datetime]) -> timedelta | None:
    """The shortest time between two of the ticks."""
    return min((later - tick for tick, later in pairwise(ticks)), default=None)


def usual_duration(
    spec: JobSpec, durations: Durations, interval: timedelta | None = None
) -> timedelta:
    """p95 of enough runs, else the time limit, else the longest so far, else a guess."""
    if durations.usual is not None:
        return timedelta(seconds=durations.usual)
    if spec.time_limit is not None and not spec.steps:
        return spec.time_limit
    if durations.longest is not None:
        return timedelta(seconds=durations.longest)
    return min(UNKNOWN_DURATION, interval or UNKNOWN_DURATION)


def late_after(spec: JobSpec, interval: timedelta | None, usual: timedelta) -> timedelta:
    """How long after its nominal time a start is late.

    A tenth of the interval, from half a minute to a quarter of an hour, and no more than the
    start deadline. For a run that may wait for another, the other's usual duration is added; for
    one that waits for runs of other jobs, how long it may do so.
    """
    late = LATE_MOST if interval is None else max(LATE_LEAST, min(LATE_MOST, interval * LATE_SHARE))
    late = min(late, spec.start_deadline)
    if spec.overlap in MAY_WAIT or spec.serial:
        late += usual
    if spec.overlap is OverlapPolicy.REQUEUE:
        late += spec.requeue_delay
    if spec.waits_for_others:
        late += UNKNOWN_DURATION if spec.max_wait is None else spec.max_wait
    return late


def work_until_success(spec: JobSpec, usual: timedelta) -> timedelta:
    """The time from the start to the end of the last attempt; retries of steps are in `usual`."""
    if spec.steps:
        return usual
    return min(LONGEST, usual * (spec.max_retries + 1) + retry_waits(spec))


def retry_waits(spec: JobSpec) -> timedelta:
    """The waits before all retries: each is twice the one before, up to the longest."""
    waits, wait = timedelta(), spec.retry_backoff
    for left in range(spec.max_retries if wait else 0, 0, -1):
        if wait >= spec.retry_backoff_max:
            return waits + left * spec.retry_backoff_max
        waits, wait = waits + wait, wait * 2
    return waits


def running_limit(spec: JobSpec, durations: Durations) -> timedelta | None:
    """How long a run may take; None as long as that is not known.

    A job that names `max_duration` is not compared with what is usual.
    """
    if spec.time_limit is not None and not spec.steps:
        return spec.time_limit + spec.stop_grace
    if spec.max_duration or durations.usual is None:
        return None
    return max(TOO_LONG_LEAST, TOO_LONG * timedelta(seconds=durations.usual))
