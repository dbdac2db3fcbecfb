"""Points in time as people write them: by a local clock, or with an offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from supervisor.times.clock import first_instant

#: Seconds may be left out; a blank does for the T.
PATTERN = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?$"


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
