"""Instants and durations in words; `now` is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

#: Beat looks once a second, and pages are up to a second old.
SECONDS_UNTIL_OVERDUE = 5


def span(seconds: float) -> str:
    """Two units at most: ``3m12s``, ``2d4h``; below ten seconds with a decimal."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def plural(count: int, noun: str, ending: str = "s") -> str:
    """``1 worker``, ``1,200 workers``"""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def age(moment: datetime | None, now: datetime) -> str:
    """``3m12s ago``; empty for what never happened."""
    return f"{span(max(0.0, (now - moment).total_seconds()))} ago" if moment else ""


def ahead(moment: datetime | None, now: datetime) -> str:
    """``in 3m12s``, ``now``, or ``overdue by 3m12s``."""
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    if seconds < -SECONDS_UNTIL_OVERDUE:
        return f"overdue by {span(-seconds)}"
    return f"in {span(seconds)}" if seconds > 0 else "now"


def drained_words(queue: str, since: datetime) -> str:
    return f"{queue} is drained since {stamp(since)} (supervisor undrain {queue})"


def stamp(moment: datetime | None) -> str:
    """UTC to the second, as in ``2026-03-01 02:00:00Z``."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if moment else ""


def pause_words(note: str | None, until: datetime | None) -> str:
    """``until 2026-03-02 06:00:00Z, the mail server moves``; empty for a pause without either."""
    return ", ".join(filter(None, [f"until {stamp(until)}" if until else "", note or ""]))


def duration(seconds: float | None) -> str:
    """How long something took: as in span(), and in milliseconds where that would be ``0.0s``."""
    if seconds is None:
        return ""
    return f"{max(1, round(seconds * 1000))}ms" if 0 < seconds < 0.1 else span(seconds)


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start) / timedelta(seconds=1) if start and end else None


def lasted(start: datetime, end: datetime) -> str:
    """``7m12s``; never negative, though the clocks of two machines may differ."""
    return duration(max(0.0, (end - start).total_seconds()))


@dataclass(frozen=True, slots=True)
class LocalTime:
    """Times by the clock of a job's zone, as read `now`."""

    now: datetime
    zone: ZoneInfo

    def time(self, at: datetime) -> str:
        """``09:05``, ``09:05:30``; of another day than today ``2026-11-19 09:05``."""
        local = at.astimezone(self.zone)
        text = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
        is_today = local.date() == self.now.astimezone(self.zone).date()
        return text if is_today else f"{local:%Y-%m-%d} {text}"

    def full(self, at: datetime) -> str:
        """``2026-11-20 09:05 CET``."""
        local = at.astimezone(self.zone)
        return f"{local:%Y-%m-%d} {local:{'%H:%M:%S' if local.second else '%H:%M'}} {local:%Z}"

    def since(self, start: datetime) -> str:
        return lasted(start, self.now)
