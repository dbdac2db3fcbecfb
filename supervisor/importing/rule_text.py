"""Parts -> the text of a recurrence rule, for what no cron expression says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from supervisor.errors import InvalidSchedule, NotTranslatable
from supervisor.importing.cron_text import DAYS, HOURS, MINUTES, MONTHS, WEEKDAYS
from supervisor.timing.rrule_fields import WEEKDAYS as NAMES
from supervisor.timing.rrule_fields import parse


def rule_text(parts: Mapping[str, Iterable[object]]) -> str:
    """`FREQ=WEEKLY;BYDAY=MO,WE`: the parts that have values, in this order.

    Raises NotTranslatable for a rule that a job cannot have.
    """
    said = {name: ",".join(map(str, values)) for name, values in parts.items()}
    text = ";".join(f"{name}={value}" for name, value in said.items() if value)
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
    """For days that match both their number and their weekday. Sunday is weekday 0.

    The frequency is one whose open parts are all values, so that the rule needs no beginning.
    """
    if not all((minutes, hours, days, months, weekdays)):
        raise NotTranslatable("it never fires: one of its fields is empty")
    open_hours, open_minutes = set(hours) == set(HOURS), set(minutes) == set(MINUTES)
    freq = "MINUTELY" if open_minutes else "HOURLY" if open_hours else "MONTHLY"
    within_days = freq != "MONTHLY"
    return rule_text(
        {
            "FREQ": [freq],
            "BYMONTH": _unless_all(months, MONTHS),
            "BYMONTHDAY": _unless_all(days, DAYS) if within_days else sorted(days),
            "BYDAY": [NAMES[(day - 1) % 7] for day in _unless_all(weekdays, WEEKDAYS)],
            "BYHOUR": _unless_all(hours, HOURS) if within_days else sorted(hours),
            "BYMINUTE": _unless_all(minutes, MINUTES),
        }
    )


def _unless_all(values: Collection[int], field: range) -> list[int]:
    return [] if set(values) == set(field) else sorted(values)
