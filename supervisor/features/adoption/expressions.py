"""Sets of minutes, hours, days, months and weekdays as a cron expression or, if need be, a rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from supervisor.errors import InvalidSchedule, NotTranslatable
from supervisor.schedule.rrule import WEEKDAYS, parse

MINUTES = range(60)
HOURS = range(24)
DAYS = range(1, 32)
MONTHS = range(1, 13)
CRON_WEEKDAYS = range(7)


def expression(
    minutes: Collection[int],
    hours: Collection[int],
    days: Collection[int],
    months: Collection[int],
    weekdays: Collection[int],
) -> str:
    """Raises NotTranslatable where cron cannot say it. Sunday is weekday 0.

    In the sets a day has to match both its number and its weekday, as in Celery.
    """
    if not all((minutes, hours, days, months, weekdays)):
        raise NotTranslatable("it never fires: one of its fields is empty")
    if set(days) != set(DAYS) and set(weekdays) != set(CRON_WEEKDAYS):
        both = "a day has to match day of month and day of week both"
        raise NotTranslatable(f"{both}; in cron either of them would do")
    fields = (minutes, MINUTES), (hours, HOURS), (days, DAYS), (months, MONTHS)
    return " ".join(compact(set(v), field) for v, field in (*fields, (weekdays, CRON_WEEKDAYS)))


def compact(values: set[int], field: range) -> str:
    """`*`, `*/5`, or values and ranges such as `1-5,9`."""
    if values == set(field):
        return "*"
    for step in range(2, len(field)):
        if values == set(field[::step]) and (len(values) > 2 or len(field) % step == 0):
            return f"*/{step}"
    return ",".join(_runs(sorted(values)))


def _runs(values: list[int]) -> Iterator[str]:
    """Three or more in a row as a range."""
    start = 0
    for end, value in enumerate(values):
        if end + 1 < len(values) and values[end + 1] == value + 1:
            continue
        if end - start >= 2:
            yield f"{values[start]}-{value}"
        else:
            yield from map(str, values[start : end + 1])
        start = end + 1


def rule_text(parts: Mapping[str, Iterable[object]]) -> str:
    """`FREQ=WEEKLY;BYDAY=MO,WE`: the parts that have values, in this order.

    Raises NotTranslatable for a rule that a job cannot have.
    """
    lists = {name: ",".join(map(str, values)) for name, values in parts.items()}
    text = ";".join(f"{name}={value}" for name, value in lists.items() if value)
    try:
        parse(text)
    except InvalidSchedule as error:
        raise NotTranslatable(str(error)) from None
    return text


def rule_for(
    minutes: Collection[int],
    hours: Collection[int],
    days: Collection[int],
    months: Collection[int],
    weekdays: Collection[int],
) -> str:
    """A rule for days that match both their number and their weekday. Sunday is weekday 0.

    It names all hours and minutes, so that it needs no beginning.
    """
    if not all((minutes, hours, days, months, weekdays)):
        raise NotTranslatable("it never fires: one of its fields is empty")
    return rule_text(
        {
            "FREQ": ["MONTHLY"],
            "BYMONTH": [] if set(months) == set(MONTHS) else sorted(months),
            "BYMONTHDAY": sorted(days),
            "BYDAY": [WEEKDAYS[(day - 1) % 7] for day in sorted(weekdays)],
            "BYHOUR": sorted(hours),
            "BYMINUTE": sorted(minutes),
        }
    )
