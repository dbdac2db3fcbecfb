"""The nominal times of a job in a stretch of time, as many at once as memory is worth."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from supervisor.job.spec import JobSpec
from supervisor.timing import missed_before, schedule_of, ticks_between

INSTANT = timedelta(microseconds=1)

CHUNK = 500


def ticks_of(spec: JobSpec, start: datetime, end: datetime) -> Iterator[datetime]:
    """Those in [start, end), in order."""
    schedule, at = schedule_of(spec), start - INSTANT
    while ticks := ticks_between(schedule, at, end - INSTANT, CHUNK):
        yield from ticks
        at = ticks[-1]


def number_of_ticks(spec: JobSpec, start: datetime, end: datetime) -> int:
    return missed_before(schedule_of(spec), start - INSTANT, end - INSTANT, keep=0)[0]
