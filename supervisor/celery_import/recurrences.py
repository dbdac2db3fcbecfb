"""A RedBeat rrule -> an `rrule` of ours, which begins at its `dtstart`.

What the rule leaves open both take from the beginning, and both count from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from dateutil.tz import datetime_exists
from redbeat.schedules import MONTHLY, WEEKLY, rrule

from supervisor.celery_import.zones import zone_name
from supervisor.errors import NotTranslatable
from supervisor.importing.rule_text import rule_text
from supervisor.times.moments import render
from supervisor.timing.rrule_fields import NUMBERS, WEEKDAYS

WEEK = timedelta(weeks=1)


def recurrence(rule: rrule, now: datetime) -> dict[str, Any]:
    """The keys for the times of the rule after `now`. Raises NotTranslatable."""
    _check(rule, now)
    zone = zone_name(rule.dtstart.tzinfo)
    return {"rrule": rule_text(dict(_parts(rule))), "timezone": zone, "start_at": start_of(rule)}


def start_of(rule: rrule) -> str:
    """By the clock of its zone."""
    return render(rule.dtstart.replace(tzinfo=None, microsecond=0))


def _check(rule: rrule, now: datetime) -> None:
    """Raises NotTranslatable for what would be accepted and mean something else."""
    if rule.byeaster is not None:
        raise NotTranslatable("there is no key for 'byeaster' of an rrule")
    if not datetime_exists(rule.dtstart):
        raise NotTranslatable(f"it begins at {rule.dtstart}, a time that the clock jumps over")
    is_first_week_told = rule.count is not None or now < rule.dtstart + WEEK
    if _has_another_first_week(rule) and is_first_week_told:
        raise NotTranslatable("'bysetpos' chooses from the rest of a week where the rule begins")


def _has_another_first_week(rule: rrule) -> bool:
    """dateutil looks at what is left of it, the RFC and we at the whole."""
    begins_within = rule.dtstart.weekday() != _week_start(rule)
    return rule.freq == WEEKLY and rule.bysetpos is not None and begins_within


def _parts(rule: rrule) -> Iterator[tuple[str, list[object]]]:
    yield "FREQ", [name for name, freq in rrule.FREQ_MAP.items() if freq == rule.freq]
    yield "INTERVAL", [rule.interval] if rule.interval != 1 else []
    yield "WKST", [WEEKDAYS[_week_start(rule)]] if _week_start(rule) else []
    yield "BYDAY", _days(rule)
    for part in NUMBERS:
        yield part, _items(getattr(rule, part.lower()))
    yield "COUNT", _items(rule.count)
    yield "UNTIL", [] if rule.until is None else [f"{rule.until.astimezone(UTC):%Y%m%dT%H%M%SZ}"]


def _days(rule: rrule) -> list[object]:
    """As dateutil has them, where RFC 5545 says otherwise: a rule of weeks alone names all their
    days, and of days with and without a number those that are both."""
    items = _items(rule.byweekday)
    if rule.byweekno is not None and not items:
        is_open = rule.bymonthday is None and rule.byyearday is None
        return list(WEEKDAYS) if is_open else []
    days = list(dict.fromkeys(_weekday(item, rule.freq) for item in items))
    plain = [day for day in days if day in WEEKDAYS]
    numbered = [day for day in days if day not in WEEKDAYS]
    if not plain or not numbered:
        return [*days]
    both: list[object] = [day for day in numbered if day[-2:] in plain]
    if not both:
        raise NotTranslatable("its weekdays with and without a number have no day in common")
    return both


def _week_start(rule: rrule) -> int:
    return int(getattr(rule.wkst, "weekday", rule.wkst) or 0)


def _weekday(item: Any, freq: int) -> str:
    """`2TU`; dateutil counts weekdays within months and years, and else ignores their numbers."""
    number = getattr(item, "n", None) if freq <= MONTHLY else None
    return f"{number or ''}{WEEKDAYS[getattr(item, 'weekday', item)]}"


def _items(given: Any) -> list[Any]:
    if given is None:
        return []
    return [given] if isinstance(given, int) or hasattr(given, "weekday") else list(given)
