"""An rrule of RedBeat as keys of a job: `cron` or `every` if they say the same, else `rrule`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

from celery import Celery
from dateutil.tz import datetime_exists
from redbeat.schedules import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY, rrule

from supervisor.errors import NotTranslatable
from supervisor.features.adoption.expressions import (
    CRON_WEEKDAYS,
    DAYS,
    HOURS,
    MINUTES,
    MONTHS,
    expression,
    rule_text,
)
from supervisor.job.fields import zone_names
from supervisor.schedule.rrule import NUMBERS, WEEKDAYS
from supervisor.times import EPOCH, render_duration, render_moment

# The IANA name of a time zone.


def zone_of(app: Celery) -> str:
    """The zone in which the app's beat reads a crontab. Raises NotTranslatable."""
    try:
        return zone_name(app.timezone)
    except KeyError as error:  # zoneinfo's "not found" is one
        raise NotTranslatable(f"the app's timezone is unknown here: {error}") from None


def zone_remark(app: Celery) -> str:
    """A remark for the head of the file: by which clock its times are."""
    try:
        zone = zone_of(app)
    except NotTranslatable as error:
        return f"Times of the clock are not translated: {error}."
    if not app.conf.timezone and not app.conf.enable_utc:
        return f"Times are read in {zone}, the zone of this machine: the app sets no `timezone`."
    return f"Times are read in {zone}, the app's zone."


def zone_name(zone: tzinfo | None) -> str:
    """A fixed offset of whole hours has a name too: +02:00 is Etc/GMT-2. Raises NotTranslatable."""
    if zone is None or zone == UTC:
        return "UTC"
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name in zone_names():
        return str(name)
    if not isinstance(zone, timezone):
        raise NotTranslatable(
            f"it follows a time zone without a name ({zone}); set `timezone` in the app"
        )
    hours, rest = divmod(zone.utcoffset(None), timedelta(hours=1))
    fixed = f"Etc/GMT{-hours:+d}"
    if rest or fixed not in zone_names():
        raise NotTranslatable(f"no time zone is always at {zone}")
    return "UTC" if hours == 0 else fixed


def is_fixed(zone: tzinfo | None) -> bool:
    """Whether an hour on the clock is always an hour."""
    return zone is None or isinstance(zone, timezone) or zone_name(zone) == "UTC"


# A RedBeat rrule -> an `rrule` of a job, which starts at its `dtstart`: both take from there what
# the rule leaves open, and count intervals from there.


#: Times of a rule with a count, which are counted through.
MOST_COUNTED = 10_000


def recurrence(rule: rrule, now: datetime) -> dict[str, Any]:
    """The keys for the times of the rule after `now`. Raises NotTranslatable."""
    _check(rule, now)
    zone = zone_name(rule.dtstart.tzinfo)
    until = rule.until if rule.count is None else _last_of(rule)
    return {
        "rrule": rule_text(dict(_parts(rule))),
        "timezone": zone,
        "start_at": start_of(rule),
        **({"end_at": end_after(until)} if until else {}),
    }


def end_after(last: datetime) -> str:
    """The time of a rule's `until` is one of its times; that of `end_at` is none."""
    return render_moment((last + timedelta(seconds=1)).astimezone(UTC))


def start_of(rule: rrule) -> str:
    """The rule's start, in the local time of its zone."""
    return render_moment(rule.dtstart.replace(tzinfo=None, microsecond=0))


def _check(rule: rrule, now: datetime) -> None:
    """Raises NotTranslatable for what would be accepted with another meaning."""
    if rule.byeaster is not None:
        raise NotTranslatable("there is no key for 'byeaster' of an rrule")
    if not datetime_exists(rule.dtstart):
        raise NotTranslatable(f"it begins at {rule.dtstart}, a time that the clock jumps over")
    # Of the week of `dtstart`, dateutil counts only the rest, RFC 5545 the whole week.
    is_partial = rule.freq == WEEKLY and rule.dtstart.weekday() != _week_start(rule)
    is_first_week = now < rule.dtstart + timedelta(weeks=1)
    if is_partial and rule.bysetpos is not None and is_first_week:
        raise NotTranslatable("'bysetpos' chooses from the rest of a week where the rule begins")


def _parts(rule: rrule) -> Iterator[tuple[str, list[object]]]:
    yield "FREQ", [name for name, freq in rrule.FREQ_MAP.items() if freq == rule.freq]
    yield "INTERVAL", [rule.interval] if rule.interval != 1 else []
    yield "WKST", [WEEKDAYS[_week_start(rule)]] if _week_start(rule) else []
    yield "BYDAY", _days(rule)
    for part in [name for name in NUMBERS if name.startswith("BY")]:
        yield part, _items(getattr(rule, part.lower()))


def _last_of(rule: rrule) -> datetime:
    """The last time of a rule with a count, which a job's rule has not. Raises NotTranslatable."""
    if not 1 <= rule.count <= MOST_COUNTED:
        raise NotTranslatable(f"a count of {rule.count:,}")
    if not (times := list(rule.rrule)):
        raise NotTranslatable("it never fires")
    last: datetime = times[-1]
    return last


def _days(rule: rrule) -> list[object]:
    """The days that dateutil chooses, which are not always those of RFC 5545: a rule of weeks
    alone has all their days, and of days with and without a number those that are both."""
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


# A RedBeat rrule -> `cron` or `every` where one of them says the same, else `rrule`.
#
# A rule that names no hours, minutes or days takes them from its `dtstart`, and counts its interval
# from there. An interval of 5 minutes, 6 hours or 3 months repeats within each hour, day or year,
# which cron can say; one of 90 minutes is a grid, with a `phase` where `dtstart` is not on it.


UNITS = {
    SECONDLY: timedelta(seconds=1),
    MINUTELY: timedelta(minutes=1),
    HOURLY: timedelta(hours=1),
    DAILY: timedelta(days=1),
    WEEKLY: timedelta(weeks=1),
}

#: Parts of a rule that cron has a field for.
FIELDS = ("bymonth", "bymonthday", "byweekday", "byhour", "byminute", "bysecond")

#: Parts that it has none for.
WITHOUT_FIELD = ("count", "until", "bysetpos", "byyearday", "byweekno", "byeaster")


def when_of_rule(rule: rrule, now: datetime) -> dict[str, Any]:
    """The keys for the times of the rule after `now`. Raises NotTranslatable."""
    if rule.interval < 1:
        raise NotTranslatable(f"an interval of {rule.interval}")
    for name in FIELDS + WITHOUT_FIELD:
        part = getattr(rule, name)
        if isinstance(part, Collection) and not part:
            raise NotTranslatable(f"{name!r} of its rrule is an empty list")
    if any(getattr(rule, name) is not None for name in WITHOUT_FIELD):
        return recurrence(rule, now)
    if _is_grid(rule, now):
        return _every(rule, now)
    with suppress(NotTranslatable):
        zone = zone_name(rule.dtstart.tzinfo)
        start = {"start_at": start_of(rule)} if rule.dtstart > now else {}
        return {"cron": _cron(rule), "timezone": zone, **start}
    # Intervals of days and weeks are plainer as a rule with a start.
    if rule.freq >= HOURLY and _is_spaced(rule):
        return _every(rule, now)
    return recurrence(rule, now)


def _every(rule: rrule, now: datetime) -> dict[str, str]:
    every = UNITS[rule.freq] * rule.interval
    start = rule.dtstart.astimezone(UTC).replace(microsecond=0)
    phase = (start - EPOCH) % every
    return {
        "every": render_duration(every),
        **({"phase": render_duration(phase)} if phase else {}),
        **({"start_at": render_moment(start)} if rule.dtstart > now else {}),
    }


def _is_grid(rule: rrule, now: datetime) -> bool:
    """Whether its times are the multiples of its interval since 1970, and cron is not plainer."""
    if rule.interval == 1 and rule.freq != SECONDLY:
        return False
    return _is_spaced(rule) and "phase" not in _every(rule, now)


def _is_spaced(rule: rrule) -> bool:
    """Whether any two of its times are one interval apart."""
    if rule.freq not in UNITS or any(getattr(rule, name) is not None for name in FIELDS):
        return False
    return is_fixed(rule.dtstart.tzinfo)


def _cron(rule: rrule) -> str:
    """The fields as dateutil fills them: below the frequency, what is not given is dtstart's."""
    start, freq = rule.dtstart, rule.freq
    if freq == SECONDLY:
        raise NotTranslatable("cron has no seconds, and 'every' begins at no time of its own")
    if _given(rule.bysecond, [start.second]) != {0}:
        raise NotTranslatable("its times are not at second 0 of a minute, and cron has no seconds")
    hours = _given(rule.byhour, HOURS if freq >= HOURLY else [start.hour])
    minutes = _given(rule.byminute, MINUTES if freq >= MINUTELY else [start.minute])
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
    if days == {-1} and weekdays == set(CRON_WEEKDAYS):
        minute, hour, _, month, weekday = expression(
            minutes, hours, DAYS, months, CRON_WEEKDAYS
        ).split()
        return f"{minute} {hour} L {month} {weekday}"
    if any(day < 1 for day in days):
        raise NotTranslatable("days counted from the end of a month, other than the last alone")
    return expression(minutes, hours, days, months, weekdays)


def _dates(rule: rrule) -> tuple[set[int], set[int], set[int]]:
    months = _given(rule.bymonth, MONTHS)
    days = _given(rule.bymonthday, DAYS)
    weekdays = _weekdays(rule.byweekday)
    if rule.bymonthday is None and rule.byweekday is None:
        if rule.freq == WEEKLY:
            weekdays = {rule.dtstart.isoweekday() % 7}
        elif rule.freq in (MONTHLY, YEARLY):
            days = {rule.dtstart.day}
        if rule.freq == YEARLY:
            months = _given(rule.bymonth, [rule.dtstart.month])
    return months, days, weekdays


def _given(part: Any, otherwise: Iterable[int]) -> set[int]:
    return set(otherwise) if part is None else set(map(int, _items(part)))


def _weekdays(part: Any) -> set[int]:
    """dateutil's Monday is 0, cron's Sunday is."""
    if part is None:
        return set(CRON_WEEKDAYS)
    items = _items(part)
    if any(getattr(item, "n", None) for item in items):
        raise NotTranslatable("a weekday counted within its month or year")
    return {(getattr(item, "weekday", item) + 1) % 7 for item in items}


def _in_step(values: set[int], start: int, interval: int) -> set[int]:
    return {value for value in values if (value - start) % interval == 0}
