"""Times of the clock on the wall -> instants, also where clocks jump and hours repeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Reading:
    """When a clock shows a time: twice in a repeated hour, and then `first` is before `second`.

    `gap` is the length of the jump over a time that the clock never shows; `first` is its end.
    """

    first: datetime
    second: datetime
    gap: timedelta = timedelta()


def reading(wall: datetime, zone: ZoneInfo) -> Reading:
    """When the clocks of `zone` show `wall`, which has no zone itself."""
    early, late = (_offset(wall.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    first = (wall - early).replace(tzinfo=UTC)
    if early == late:
        return Reading(first, first)
    second = (wall - late).replace(tzinfo=UTC)
    if early > late:
        return Reading(first, second)
    end = _clock_change(second, first, zone)
    return Reading(end, end, late - early)


def first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clock first shows this, or else jumps over it."""
    return reading(wall, zone).first


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a local date; of one that the zone left out, that of the next."""
    return first_instant(datetime(day.year, day.month, day.day), zone)


def is_plain(start: datetime, end: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks show the same offset right before `start` and at `end`: no change between."""
    return (start - INSTANT).astimezone(zone).utcoffset() == end.astimezone(zone).utcoffset()


def _offset(at: datetime) -> timedelta:
    offset = at.utcoffset()
    assert offset is not None, "a zone of the IANA database has an offset at any time"
    return offset


@lru_cache(maxsize=4096)
def _clock_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The first second of the new offset, which is in (before, after]: bisection."""
    old = before.astimezone(zone).utcoffset()
    low, high = 0, round((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
