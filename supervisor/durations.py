"""Durations as people write them; the only module that knows the units."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from supervisor.errors import InvalidDuration

UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PART = r"(\d+(?:\.\d+)?)(ms|[dhms])"
PATTERN = rf"^(?:{_PART})+$"


def parse(text: Any) -> timedelta:
    """``"1h30m"``, ``"90s"``, ``"500ms"`` or a number of seconds -> timedelta.

    Raises InvalidDuration for anything else, also for negative numbers and booleans.
    """
    if isinstance(text, timedelta):
        return text
    if isinstance(text, int | float) and not isinstance(text, bool) and 0 <= text < 1e9:
        return timedelta(seconds=text)
    if not isinstance(text, str) or not re.match(PATTERN, compact := text.replace(" ", "")):
        raise InvalidDuration(f"{text!r} is not a duration such as 90s, 5m or 1h30m")
    try:
        return sum((float(n) * UNITS[unit] for n, unit in re.findall(_PART, compact)), timedelta())
    except OverflowError:
        raise InvalidDuration(f"{text!r} is too long a duration") from None


def render(duration: timedelta) -> str:
    """The shortest exact text that `parse` reads back: ``1h30m``, ``0s``, ``1.5s`` as ``1s500ms``."""
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
    BeforeValidator(parse),
    PlainSerializer(render, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": PATTERN}, {"type": "number", "minimum": 0}],
            "description": "a duration such as 90s, 5m, 1h30m, or a number of seconds",
        }
    ),
]
