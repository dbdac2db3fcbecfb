"""Points in time as people write them: by a local clock, or with an offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from supervisor.errors import InvalidDuration
from supervisor.times import durations
from supervisor.times.clock import first_instant

#: Seconds may be left out; a blank does for the T.
PATTERN = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?$"


#: ``09:05``, ``9:05:30``
CLOCK_TIME = re.compile(r"^(\d{1,2}):(\d\d)(?::(\d\d))?$")

DAY = timedelta(days=1)


def parse(text: Any) -> datetime:
    """``2026-12-24T18:00:00`` by the job's clock, or with ``Z`` or ``+01:00`` after it."""
    if isinstance(text, datetime):
        return text
    if isinstance(text, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError(f"{text!r} has no time; write {text}T00:00:00 for the day's beginning")
    if not isinstance(text, str) or not re.fullmatch(PATTERN, text):
        raise ValueError(f"{text!r} is not a time such as 2026-12-24T18:00:00")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is on no calendar or clock") from None


def render(moment: datetime) -> str:
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def instant(moment: datetime, zone: ZoneInfo) -> datetime:
    """The moment in UTC. Of a repeated hour the first copy counts, of a gap its end.

    Raises ValueError at the edges of the calendar, where UTC has no name for it.
    """
    try:
        return first_instant(moment, zone) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{moment.isoformat()} is beyond the calendar") from None


def asked(text: str, zone: ZoneInfo, now: datetime, *, ahead: bool) -> datetime:
    """The moment that a person means on a command line, in UTC.

    ``now``; a duration (``2h``), before now or, with `ahead`, after it, and ``+2h`` and ``-2h``
    whatever `ahead` says; or what `clock_time` takes. Raises ValueError.
    """
    if text == "now":
        return now
    sign = text[:1] if text[:1] in ("+", "-") else "+" if ahead else "-"
    try:
        apart = durations.parse(text.removeprefix(sign))
    except InvalidDuration:
        return clock_time(text, zone, now, ahead=ahead)
    try:
        return now + apart if sign == "+" else now - apart
    except OverflowError:
        raise ValueError(f"{text!r} is beyond the calendar") from None


def clock_time(text: str, zone: ZoneInfo, now: datetime, *, ahead: bool) -> datetime:
    """``09:05`` by the zone's clock: today's, else the last such or, with `ahead`, the next; or an
    ISO 8601 date or time, by that clock unless it has an offset. Raises ValueError.
    """
    found = CLOCK_TIME.match(text)
    if found is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            words = "is not a moment such as 2h, 09:05, 2026-03-01T02:00 or 2026-03-01"
            raise ValueError(f"{text!r} {words}") from None
        return instant(moment, zone)
    hour, minute, second = (int(part or 0) for part in found.groups())
    today = now.astimezone(zone).replace(tzinfo=None, microsecond=0)
    wall = today.replace(hour=hour, minute=minute, second=second)
    at = first_instant(wall, zone)
    if ahead:
        return at if at > now else first_instant(wall + DAY, zone)
    return at if at <= now else first_instant(wall - DAY, zone)


Moment = Annotated[
    datetime,
    BeforeValidator(parse),
    PlainSerializer(render, return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": PATTERN,
            "description": "a time such as 2026-12-24T18:00:00, by the clocks of `timezone`, or "
            "with Z or an offset such as +01:00",
        }
    ),
]
