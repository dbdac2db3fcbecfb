"""Kinds of options that click does not have."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click

from supervisor.errors import InvalidDuration
from supervisor.times.durations import parse
from supervisor.times.moments import asked


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


@dataclass(frozen=True, slots=True)
class Named:
    """A moment as it was written, until its zone is known."""

    text: str
    ahead: bool

    def at(self, zone: ZoneInfo, now: datetime) -> datetime:
        """In UTC. Raises BadParameter."""
        try:
            return asked(self.text, zone, now, ahead=self.ahead)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error


class MomentType(click.ParamType):  # type: ignore[type-arg]
    """now, how long ago (2h) or, with `ahead`, from now, 09:05, or an ISO 8601 date or time."""

    name = "moment"

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead

    def convert(self, value: Any, param: Any, ctx: Any) -> Named:
        if isinstance(value, Named):
            return value
        named = Named(str(value), self._ahead)
        try:
            asked(named.text, ZoneInfo("UTC"), datetime.now(UTC), ahead=self._ahead)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return named


def moment_of(named: Named | None, zone: ZoneInfo, now: datetime) -> datetime | None:
    return None if named is None else named.at(zone, now)


PORT = click.IntRange(1, 65_535)
