"""The zone in which pages show times: UTC, or that of the browser, which the page's script says."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from supervisor.operate import words

#: The name of the cookie, and of a zone the longest.
COOKIE, LONGEST = "supervisor_zone", 64

_zone: ContextVar[tzinfo] = ContextVar("zone", default=UTC)


def use(name: str | None) -> None:
    """For all that this request shows. UTC without a name, or where there is no such zone."""
    try:
        _zone.set(ZoneInfo(name[:LONGEST]) if name else UTC)
    except (KeyError, ValueError, OSError):
        _zone.set(UTC)


def zone() -> tzinfo:
    return _zone.get()


def stamp(moment: datetime | None) -> str:
    """``2026-03-01 02:00:00Z``, ``2026-03-01 03:00:00 CET``"""
    if moment is None or zone() is UTC:
        return words.stamp(moment)
    return f"{moment.astimezone(zone()):%Y-%m-%d %H:%M:%S %Z}"
