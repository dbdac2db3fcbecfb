"""Durations as people write them; the only module that knows the units."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from supervisor.errors import InvalidDuration

UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PART = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(ms|[dhms])"
PATTERN = rf"^{_PART}(?: ?{_PART})*$"

#: About 31 years: instants stay representable when a duration is added to or taken from them.
LONGEST_SECONDS = 1_000_000_000


def parse(text: Any) -> timedelta:
    """``"1h30m"``, ``"90s"``, ``"500ms"`` or a number of seconds -> timedelta.

    Raises InvalidDuration for anything else, also for negative numbers and booleans.
    """
    if isinstance(text, timedelta):
        return text
    if isinstance(text, int | float) and not isinstance(text, bool) and text >= 0:
        return _within_bounds(text, text)
    if not isinstance(text, str) or not re.fullmatch(PATTERN, text):
        raise InvalidDuration(f"{text!r} is not a duration such as 90s, 5m or 1h30m")
    parts = re.findall(_PART, text)
    return _within_bounds(text, sum(float(n) * UNITS[unit].total_seconds() for n, unit in parts))


def _within_bounds(text: Any, seconds: float) -> timedelta:
    """The duration to the millisecond, which is what `render` and the ledger keep of it."""
    if seconds > LONGEST_SECONDS:
        raise InvalidDuration(f"{text!r} is too long a duration; the longest is 30 years")
    return timedelta(milliseconds=round(seconds * 1000))


def render(duration: timedelta) -> str:
    """The text that `parse` reads back exactly: ``1h30m``, ``0s``, and ``1s500ms`` for 1.5 s."""
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


def _at_least_a_second(duration: timedelta) -> timedelta:
    if duration < timedelta(seconds=1):
        raise ValueError("must be at least 1s")
    return duration


AtLeastASecond = Annotated[Duration, AfterValidator(_at_least_a_second)]
