"""Kinds of options that click does not have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from supervisor.durations import parse
from supervisor.errors import InvalidDuration


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
