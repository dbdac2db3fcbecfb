"""Durations, moments and clocks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from supervisor.errors import InvalidRequest, NotConfigured, shown

UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PART = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(ms|[dhms])"
DURATION_PATTERN = rf"^{_PART}(?: ?{_PART})*$"

#: About 31 years: instants stay representable when a duration is added to or taken from them.
LONGEST_SECONDS = 1_000_000_000


def parse_duration(text: Any) -> timedelta:
    """``"1h30m"``, ``"90s"``, ``"500ms"`` or a number of seconds -> timedelta.

    Raises ValueError for anything else, also for negative numbers and booleans.
    """
    if isinstance(text, timedelta):
        return text
    if isinstance(text, int | float) and not isinstance(text, bool) and text >= 0:
        return _within_bounds(text, text)
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{shown(text)} is not a duration such as 90s, 5m or 1h30m")
    parts = re.findall(_PART, text)
    return _within_bounds(text, sum(float(n) * UNITS[unit].total_seconds() for n, unit in parts))


def _within_bounds(text: Any, seconds: float) -> timedelta:
    """The duration in whole milliseconds, which is all that texts and the ledger keep of it."""
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{text!r} is too long a duration; the longest is 30 years")
    return timedelta(milliseconds=round(seconds * 1000))


def duration_in(environ: Mapping[str, str], name: str, default: timedelta) -> timedelta:
    """The duration in this variable. Raises NotConfigured."""
    text = environ.get(name, "")
    try:
        return parse_duration(text) if text else default
    except ValueError as error:
        raise NotConfigured(f"{name}: {error}") from None


def render_duration(duration: timedelta) -> str:
    """The text that `parse_duration` reads back exactly: ``1h30m``, ``0s``, ``1s500ms``."""
    milliseconds = round(duration / UNITS["ms"])
    parts = []
    for unit, size in UNITS.items():
        count, milliseconds = divmod(milliseconds, round(size / UNITS["ms"]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def to_ms(duration: timedelta) -> int:
    return round(duration / UNITS["ms"])


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(render_duration, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": DURATION_PATTERN},
                {"type": "number", "minimum": 0},
            ],
            "description": "a duration such as 90s, 5m, 1h30m, or a number of seconds",
        }
    ),
]


def _at_least_a_second(duration: timedelta) -> timedelta:
    if duration < timedelta(seconds=1):
        raise ValueError("must be at least 1s")
    return duration


AtLeastASecond = Annotated[Duration, AfterValidator(_at_least_a_second)]

# Local times -> instants, also where clocks jump and hours repeat.


DAY = timedelta(days=1)

#: A hundred years. People ask for nothing farther away, where calculations leave the calendar.
FARTHEST = timedelta(days=36_525)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Reading:
    """When a clock shows a time: twice in a repeated hour, and then `first` is before `second`."""

    first: datetime
    second: datetime
    gap: timedelta = timedelta()
    """The length of the jump over a time that the clock never shows; `first` is its end."""


def reading(local: datetime, zone: ZoneInfo) -> Reading:
    """When the clocks of `zone` show `local`, which has no zone itself."""
    early, late = (_offset(local.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    first = (local - early).replace(tzinfo=UTC)
    if early == late:
        return Reading(first, first)
    second = (local - late).replace(tzinfo=UTC)
    if early > late:
        return Reading(first, second)
    end = offset_change(second, first, zone)
    return Reading(end, end, late - early)


def first_instant(local: datetime, zone: ZoneInfo) -> datetime:
    """When the clock first shows this time, or else jumps over it."""
    return reading(local, zone).first


def plus(moment: datetime, duration: timedelta) -> datetime | None:
    """The sum; None beyond the calendar, which ends with the year 9999."""
    try:
        return moment + duration
    except OverflowError:
        return None


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a local date, or of the next one if the zone left it out."""
    return first_instant(datetime(day.year, day.month, day.day), zone)


def is_plain(start: datetime, end: datetime, zone: ZoneInfo) -> bool:
    """Whether no clock changes between: the offset right before `start` is that at `end`."""
    return (start - INSTANT).astimezone(zone).utcoffset() == end.astimezone(zone).utcoffset()


def _offset(at: datetime) -> timedelta:
    offset = at.utcoffset()
    assert offset is not None, "a zone of the IANA database has an offset at any time"
    return offset


@lru_cache(maxsize=4096)
def offset_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
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


# A clock that goes on while the machine sleeps.


def clock() -> float:
    """Seconds that go on while the machine sleeps, where there is such a clock.

    The same for all processes of the machine.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def ms_since(moment: float) -> int:
    """Whole milliseconds since then, by `clock`."""
    return max(0, round(1000 * (clock() - moment)))


# Moments as people write them: in local time, or with an offset.


#: Seconds may be left out; a blank does for the T.
MOMENT_PATTERN = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?$"


#: ``09:05``, ``9:05:30``
CLOCK_TIME = re.compile(r"^(\d{1,2}):(\d\d)(?::(\d\d))?$")


def parse_moment(text: Any) -> datetime:
    """``2026-12-24T18:00:00`` by the job's clock, or with ``Z`` or ``+01:00`` after it."""
    if isinstance(text, datetime):
        return text
    if isinstance(text, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError(f"{text!r} has no time; write {text}T00:00:00 for the day's beginning")
    if not isinstance(text, str) or not re.fullmatch(MOMENT_PATTERN, text):
        raise ValueError(f"{shown(text)} is not a time such as 2026-12-24T18:00:00")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is on no calendar or clock") from None


def render_moment(moment: datetime) -> str:
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def render_milliseconds(moment: datetime) -> str:
    """The moment in UTC, for programs: ``2026-12-24T18:00:00.000Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def in_utc(moment: datetime, zone: ZoneInfo) -> datetime:
    """The moment in UTC. Of a repeated hour the first copy counts, of a gap its end.

    Raises ValueError at the edges of the calendar, where UTC has no name for it.
    """
    try:
        return first_instant(moment, zone) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{moment.isoformat()} is beyond the calendar") from None


def to_come(name: str, named: datetime, zone: ZoneInfo, now: datetime) -> datetime:
    """A moment that a request names, in UTC.

    Raises InvalidRequest if it is in the past, or too far ahead.
    """
    try:
        moment = in_utc(named, zone)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from error
    if moment <= now:
        raise InvalidRequest(f"{name} is in the past")
    if moment > now + FARTHEST:
        raise InvalidRequest(f"{name} is more than 100 years from now")
    return moment


def named_moment(text: str, zone: ZoneInfo, now: datetime, *, ahead: bool) -> datetime:
    """The moment that a person means on a command line, in UTC.

    ``now``; a duration such as ``2h``, back from now or, with `ahead`, forward; ``+2h`` or ``-2h``
    in either case; or what `clock_time` takes. Raises ValueError.
    """
    if text == "now":
        return now
    sign = text[:1] if text[:1] in ("+", "-") else "+" if ahead else "-"
    try:
        apart = parse_duration(text.removeprefix(sign))
    except ValueError:
        return clock_time(text, zone, now, ahead=ahead)
    return now + apart if sign == "+" else now - apart  # no duration is longer than FARTHEST


def clock_time(text: str, zone: ZoneInfo, now: datetime, *, ahead: bool) -> datetime:
    """``09:05``: when the zone's clock last showed it or, with `ahead`, shows it next; or an ISO
    8601 date or time, by that clock unless it has an offset. Raises ValueError.
    """
    match = CLOCK_TIME.match(text)
    if match is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            words = "is not a moment such as 2h, 09:05, 2026-03-01T02:00 or 2026-03-01"
            raise ValueError(f"{text!r} {words}") from None
        at = in_utc(moment, zone)
        if abs(at - now) > FARTHEST:
            raise ValueError(f"{text!r} is more than 100 years from now")
        return at
    hour, minute, second = (int(part or 0) for part in match.groups())
    today = now.astimezone(zone).replace(tzinfo=None, microsecond=0)
    local = today.replace(hour=hour, minute=minute, second=second)
    at = first_instant(local, zone)
    if ahead:
        return at if at > now else first_instant(local + DAY, zone)
    return at if at <= now else first_instant(local - DAY, zone)


Moment = Annotated[
    datetime,
    BeforeValidator(parse_moment),
    PlainSerializer(render_moment, return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": MOMENT_PATTERN,
            "description": "a time such as 2026-12-24T18:00:00, by the clocks of `timezone`, or "
            "with Z or an offset such as +01:00",
        }
    ),
]


# Instants of the ledger, which are milliseconds since 1970.


def optional_instant(ms: str | int | float | None) -> datetime | None:
    return datetime.fromtimestamp(float(ms) / 1000, UTC) if ms else None


def instant(ms: str | int | float) -> datetime:
    return datetime.fromtimestamp(float(ms) / 1000, UTC)


def ms_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
