"""Kinds of options that click does not have."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click

from supervisor.errors import InvalidDuration
from supervisor.times.durations import parse
from supervisor.times.moments import instant


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """90s, 5m, 1h30m, or a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse(value)
        except InvalidDuration as error:
            self.fail(str(error), param, ctx)


class InstantType(click.ParamType):  # type: ignore[type-arg]
    """An ISO 8601 date or time, kept as text until its zone is known."""

    name = "instant"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-03-01T02:00 or 2026-03-01", param, ctx)
        return str(value)


class SinceType(click.ParamType):  # type: ignore[type-arg]
    """How long ago (2h, 90s), or an instant that is kept as text until its zone is known."""

    name = "duration or instant"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta | str:
        try:
            return parse(value)
        except InvalidDuration:
            pass
        try:
            datetime.fromisoformat(value)
        except ValueError:
            text = f"{value!r} is neither a duration such as 2h nor a time such as 2026-03-01"
            self.fail(text, param, ctx)
        return str(value)


def moment_of(value: timedelta | str | None, zone: ZoneInfo, now: datetime) -> datetime | None:
    """Of what SinceType gives: so long before `now`, or that instant."""
    return now - value if isinstance(value, timedelta) else zoned(value, zone)


def zoned(text: str | None, zone: ZoneInfo) -> datetime | None:
    """The instant; a time without an offset is one of the zone. Raises BadParameter."""
    if text is None:
        return None
    try:
        return instant(datetime.fromisoformat(text), zone)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


PORT = click.IntRange(1, 65_535)
