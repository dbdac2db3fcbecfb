"""An rrule of RedBeat as keys of a job: `every` if it says the same, else `rrule`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

from celery import Celery
from dateutil.tz import datetime_exists
from redbeat.schedules import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, rrule

from supervisor.errors import NotTranslatable
from supervisor.features.adoption.expressions import HOURS, MINUTES, rule_text
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


# A RedBeat rrule -> `every` where all its times are one interval apart, else an `rrule` of a job,
# which starts at its `dtstart`: both take from there what the rule leaves open, and count intervals
# from there.


#: Times of a rule with a count, which are counted through.
MOST_COUNTED = 10_000

UNITS = {
    SECONDLY: timedelta(seconds=1),
    MINUTELY: timedelta(minutes=1),
    HOURLY: timedelta(hours=1),
}

#: The part that chooses among the times of a frequency -> the frequency, and all the part's values.
CLOCK = {"BYHOUR": (HOURLY, HOURS), "BYMINUTE": (MINUTELY, MINUTES)}

#: What a rule may choose its times by.
CHOICES = (
    *("bymonth", "bymonthday", "byyearday", "byweekno", "byweekday", "byeaster"),
    *("byhour", "byminute", "bysecond", "bysetpos"),
)


def when_of_rule(rule: rrule, now: datetime) -> dict[str, Any]:
    """The keys for the times of the rule after `now`. Raises NotTranslatable."""
    if rule.interval < 1:
        raise NotTranslatable(f"an interval of {rule.interval}")
    for name in CHOICES:
        part = getattr(rule, name)
        if isinstance(part, Collection) and not part:
            raise NotTranslatable(f"{name!r} of its rrule is an empty list")
    times = _every(rule, now) if _is_spaced(rule) else _recurrence(rule, now)
    until = rule.until if rule.count is None else _last_of(rule)
    return {**times, **({"end_at": end_after(until)} if until else {})}


def _is_spaced(rule: rrule) -> bool:
    """Whether any two of its times are one interval apart."""
    if rule.freq not in UNITS or any(getattr(rule, name) is not None for name in CHOICES):
        return False
    return is_fixed(rule.dtstart.tzinfo)


def _every(rule: rrule, now: datetime) -> dict[str, str]:
    every = UNITS[rule.freq] * rule.interval
    start = rule.dtstart.astimezone(UTC).replace(microsecond=0)
    phase = (start - EPOCH) % every
    return {
        "every": render_duration(every),
        **({"phase": render_duration(phase)} if phase else {}),
        **({"start_at": render_moment(start)} if rule.dtstart > now else {}),
    }


def _recurrence(rule: rrule, now: datetime) -> dict[str, str]:
    _check(rule, now)
    zone = zone_name(rule.dtstart.tzinfo)
    return {
        "rrule": rule_text(dict(_parts(rule))),
        "timezone": zone,
        "start_at": start_of(rule),
    }


def end_after(last: datetime) -> str:
    """The time of a rule's `until` is one of its times; that of `end_at` is none."""
    return render_moment((last + timedelta(seconds=1)).astimezone(UTC))


def start_of(rule: rrule) -> str:
    """The rule's start, in the local time of its zone."""
    return render_moment(rule.dtstart.replace(tzinfo=None, microsecond=0))


def _check(rule: rrule, now: datetime) -> None:
    """Raises NotTranslatable for what would be accepted with another meaning."""
    for name in ("byeaster", "byweekno", "byyearday"):
        if getattr(rule, name) is not None:
            raise NotTranslatable(f"there is no key for {name!r} of an rrule")
    whole = {HOURLY: len(HOURS), MINUTELY: len(MINUTES)}.get(rule.freq, 0)
    if rule.freq == SECONDLY or whole % rule.interval:
        interval = render_duration(UNITS[rule.freq] * rule.interval)
        what = f"'rrule' has times of the day, and no interval of {interval}"
        raise NotTranslatable(f"{what}: use 'cron', or 'every' with 'exclude'")
    if not datetime_exists(rule.dtstart):
        raise NotTranslatable(f"it begins at {rule.dtstart}, a time that the clock jumps over")
    # Of the week of `dtstart`, dateutil counts only the rest, RFC 5545 the whole week.
    is_partial = rule.freq == WEEKLY and rule.dtstart.weekday() != _week_start(rule)
    is_first_week = now < rule.dtstart + timedelta(weeks=1)
    if is_partial and rule.bysetpos is not None and is_first_week:
        raise NotTranslatable("'bysetpos' chooses from the rest of a week where the rule begins")


def _parts(rule: rrule) -> Iterator[tuple[str, list[object]]]:
    """An interval of hours or minutes becomes those hours or minutes of each day."""
    freq, interval = min(rule.freq, DAILY), 1 if rule.freq in UNITS else rule.interval
    yield "FREQ", [name for name, number in rrule.FREQ_MAP.items() if number == freq]
    yield "INTERVAL", [interval] if interval != 1 else []
    yield "WKST", [WEEKDAYS[_week_start(rule)]] if _week_start(rule) else []
    yield "BYDAY", _days(rule)
    for part in [name for name in NUMBERS if name.startswith("BY")]:
        yield part, _numbers(rule, part)


def _numbers(rule: rrule, part: str) -> list[object]:
    """None where the start says it, as in a job's rule."""
    given = _items(getattr(rule, part.lower()))
    freq, field = CLOCK.get(part, (SECONDLY, ()))
    if rule.freq < freq:
        return given
    start = getattr(rule.dtstart, part.removeprefix("BY").lower())
    step = rule.interval if rule.freq == freq else 1
    return [number for number in given or field if (number - start) % step == 0]


def _last_of(rule: rrule) -> datetime:
    """The last time of a rule with a count, which a job's rule has not. Raises NotTranslatable."""
    if not 1 <= rule.count <= MOST_COUNTED:
        raise NotTranslatable(f"a count of {rule.count:,}")
    if not (times := list(rule.rrule)):
        raise NotTranslatable("it never fires")
    last: datetime = times[-1]
    return last


def _days(rule: rrule) -> list[object]:
    """The days that dateutil chooses, which are not always those of RFC 5545: of days with and
    without a number those that are both."""
    days = list(dict.fromkeys(_weekday(item, rule.freq) for item in _items(rule.byweekday)))
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
