"""Windows of time: the first tick in one, the last, and how many there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Protocol, runtime_checkable

from supervisor.schedule.clock_times import ClockTimes, JoinedTimes

# What every schedule can be asked.


#: A search that finds no time for this long ends: longer than any calendar's cycle of leap days and
#: weekdays.
HORIZON_YEARS = 50
HORIZON = timedelta(days=366 * HORIZON_YEARS)


class Schedule(Protocol):
    """Names instants; aware UTC in and out."""

    def next_after(self, at: datetime) -> datetime | None:
        """The first nominal time strictly after `at`; None when there is none."""
        ...


@runtime_checkable
class Counted(Schedule, Protocol):
    """A schedule that counts its times without going through them."""

    def count(self, after: datetime, until: datetime) -> int:
        """How many nominal times lie in (after, until]."""
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
    if until <= after:
        return 0
    if isinstance(schedule, Counted):
        return schedule.count(after, until)
    return sum(1 for _ in _walk(schedule, after, until))


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
        found = count_between(schedule, until - middle, until)
        if found < keep:
            too_short = middle
        else:
            span = middle
            if found <= keep + CHEAP:
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
