"""A RedBeat rrule -> `cron` or `every` where either says the same, else `rrule`.

A rule that says nothing of hours, minutes or days takes them from its `dtstart`, and an interval is
counted from there. An interval of 5 minutes, 6 hours or 3 months is a pattern that comes again in
each hour, day or year, for cron; one of 90 minutes is a grid, with a `phase` where `dtstart` is not
on it. Whatever is neither keeps its parts as an `rrule` (recurrences.py).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from redbeat.schedules import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY, rrule

from supervisor.celery_import.recurrences import recurrence, start_of
from supervisor.celery_import.zones import is_fixed, zone_name
from supervisor.errors import NotTranslatable
from supervisor.importing.cron_text import DAYS, HOURS, MINUTES, MONTHS, WEEKDAYS, expression
from supervisor.times.durations import render
from supervisor.times.moments import render as render_moment

UNITS = {
    SECONDLY: timedelta(seconds=1),
    MINUTELY: timedelta(minutes=1),
    HOURLY: timedelta(hours=1),
    DAILY: timedelta(days=1),
    WEEKLY: timedelta(weeks=1),
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: What narrows a rule down and cron has a field for.
FIELDS = ("bymonth", "bymonthday", "byweekday", "byhour", "byminute", "bysecond")

#: What it has none for.
WITHOUT_FIELD = ("count", "until", "bysetpos", "byyearday", "byweekno", "byeaster")


def when_of_rule(rule: rrule, now: datetime) -> dict[str, Any]:
    """The keys for the times of the rule after `now`. Raises NotTranslatable."""
    if rule.interval < 1:
        raise NotTranslatable(f"an interval of {rule.interval}")
    if empty := [name for name in FIELDS + WITHOUT_FIELD if _is_empty(getattr(rule, name))]:
        raise NotTranslatable(f"{empty[0]!r} of its rrule is an empty list")
    if any(getattr(rule, name) is not None for name in WITHOUT_FIELD):
        return recurrence(rule, now)
    if _is_grid(rule):
        return {**_every(rule), **_start(rule, now, UTC)}
    with suppress(NotTranslatable):
        zone = zone_name(rule.dtstart.tzinfo)
        return {"cron": _cron(rule), "timezone": zone, **_start(rule, now)}
    if _is_shifted_grid(rule):
        return {**_every(rule), **_start(rule, now, UTC)}
    return recurrence(rule, now)


def _is_empty(given: Any) -> bool:
    return isinstance(given, Collection) and not given


def _start(rule: rrule, now: datetime, zone: tzinfo | None = None) -> dict[str, str]:
    """`start_at`, where the rule has yet to begin."""
    if rule.dtstart <= now:
        return {}
    return {"start_at": start_of(rule) if zone is None else render_moment(_begin(rule, zone))}


def _begin(rule: rrule, zone: tzinfo) -> datetime:
    begin: datetime = rule.dtstart.astimezone(zone).replace(microsecond=0)
    return begin


def _every(rule: rrule) -> dict[str, str]:
    every = UNITS[rule.freq] * rule.interval
    phase = (_begin(rule, UTC) - EPOCH) % every
    return {"every": render(every), **({"phase": render(phase)} if phase else {})}


def _is_grid(rule: rrule) -> bool:
    """Whether its times are the multiples of its interval since 1970, and no plainer cron is."""
    if rule.interval == 1 and rule.freq != SECONDLY:
        return False
    return _is_spaced(rule) and "phase" not in _every(rule)


def _is_shifted_grid(rule: rrule) -> bool:
    """Intervals of days and weeks are plainer as a rule with a beginning."""
    return rule.freq >= HOURLY and _is_spaced(rule)


def _is_spaced(rule: rrule) -> bool:
    """Whether one interval lies between any two of its times."""
    if rule.freq not in UNITS or any(getattr(rule, name) is not None for name in FIELDS):
        return False
    return is_fixed(rule.dtstart.tzinfo)


def _cron(rule: rrule) -> str:
    """The fields as dateutil fills them: what is not said is dtstart's, up to the frequency."""
    start, freq = rule.dtstart, rule.freq
    if freq == SECONDLY:
        raise NotTranslatable("cron has no seconds, and 'every' begins at no time of its own")
    if _numbers(rule.bysecond, [start.second]) != {0}:
        raise NotTranslatable("its times are not at second 0 of a minute, and cron has no seconds")
    hours = _numbers(rule.byhour, HOURS if freq >= HOURLY else [start.hour])
    minutes = _numbers(rule.byminute, MINUTES if freq >= MINUTELY else [start.minute])
    months, days, weekdays = _dates(rule)
    if rule.interval == 1:
        pass
    elif freq == MINUTELY and 60 % rule.interval == 0:
        minutes = _in_step(minutes, start.minute, rule.interval)
    elif freq == HOURLY and 24 % rule.interval == 0 and is_fixed(start.tzinfo):
        hours = _in_step(hours, start.hour, rule.interval)
    elif freq == MONTHLY and 12 % rule.interval == 0:
        months = _in_step(months, start.month, rule.interval)
    else:
        raise NotTranslatable(f"cron cannot count an interval of {rule.interval} from a start")
    if days == {-1} and weekdays == set(WEEKDAYS):
        minute, hour, _, month, weekday = expression(minutes, hours, DAYS, months, WEEKDAYS).split()
        return f"{minute} {hour} L {month} {weekday}"
    if any(day < 1 for day in days):
        raise NotTranslatable("days counted from the end of a month, other than the last alone")
    return expression(minutes, hours, days, months, weekdays)


def _dates(rule: rrule) -> tuple[set[int], set[int], set[int]]:
    months = _numbers(rule.bymonth, MONTHS)
    days = _numbers(rule.bymonthday, DAYS)
    weekdays = _weekdays(rule.byweekday)
    if rule.bymonthday is None and rule.byweekday is None:
        if rule.freq == WEEKLY:
            weekdays = {rule.dtstart.isoweekday() % 7}
        elif rule.freq in (MONTHLY, YEARLY):
            days = {rule.dtstart.day}
        if rule.freq == YEARLY:
            months = _numbers(rule.bymonth, [rule.dtstart.month])
    return months, days, weekdays


def _numbers(given: Any, otherwise: Any) -> set[int]:
    if given is None:
        return set(otherwise)
    return {int(given)} if isinstance(given, int) else {int(number) for number in given}


def _weekdays(given: Any) -> set[int]:
    """dateutil's Monday is 0, cron's Sunday is."""
    if given is None:
        return set(WEEKDAYS)
    items = [given] if isinstance(given, int) or hasattr(given, "weekday") else given
    if any(getattr(item, "n", None) for item in items):
        raise NotTranslatable("a weekday counted within its month or year")
    return {(getattr(item, "weekday", item) + 1) % 7 for item in items}


def _in_step(values: set[int], start: int, interval: int) -> set[int]:
    return {value for value in values if (value - start) % interval == 0}
