"""Sets of minutes, hours, days, months and weekdays -> the shortest cron expression for them.

In the sets a day has to match both its number and its weekday, as in Celery. In cron it has to
match one of the two where both are restricted, unless one of them begins with `*`: see `_days`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from supervisor.errors import NotTranslatable

MINUTES = range(60)
HOURS = range(24)
DAYS = range(1, 32)
MONTHS = range(1, 13)
WEEKDAYS = range(7)

#: The days on which a weekday comes for the first, second ... fifth time in its month.
WEEKS = {number: frozenset(DAYS[7 * number - 7 : 7 * number]) for number in range(1, 6)}


def expression(
    minutes: Collection[int],
    hours: Collection[int],
    days: Collection[int],
    months: Collection[int],
    weekdays: Collection[int],
) -> str:
    """Raises NotTranslatable where cron cannot say it. Sunday is weekday 0."""
    if not all((minutes, hours, days, months, weekdays)):
        raise NotTranslatable("it never fires: one of its fields is empty")
    day, weekday = _days(set(days), set(weekdays))
    minute, hour = compact(set(minutes), MINUTES), compact(set(hours), HOURS)
    return f"{minute} {hour} {day} {compact(set(months), MONTHS)} {weekday}"


def _days(days: set[int], weekdays: set[int]) -> tuple[str, str]:
    """Day of month and day of week for days that match both. Exact are, tried in this order:

    1. one of the two is unrestricted;
    2. the days are whole weeks: 1-7 and Monday is the first Monday, `1#1`;
    3. one of the two is a step over all, `*/2`: cron asks for both where a field begins with `*`.
    """
    if days == set(DAYS) or weekdays == set(WEEKDAYS):
        return compact(days, DAYS), compact(weekdays, WEEKDAYS)
    weeks = [number for number, week in WEEKS.items() if week <= days]
    if days == frozenset().union(*(WEEKS[number] for number in weeks)):
        return "*", ",".join(f"{day}#{week}" for week in weeks for day in sorted(weekdays))
    if step := _step_over(days, DAYS):
        return step, compact(weekdays, WEEKDAYS)
    if step := _step_over(weekdays, WEEKDAYS):
        return compact(days, DAYS), step
    raise NotTranslatable(
        "a day has to match day of month and day of week both; in cron either of them would do"
    )


def compact(values: set[int], field: range) -> str:
    """`*`, `*/5`, `2-30/4`, or values and ranges such as `1-5,9`."""
    if values == set(field):
        return "*"
    step = _step_over(values, field)
    if step and (len(values) > 2 or len(field) % (max(values) - min(values)) == 0):
        return step
    return _progression(sorted(values)) or ",".join(_runs(sorted(values)))


def _step_over(values: set[int], field: range) -> str | None:
    for step in range(2, len(field)):
        if len(values) > 1 and values == set(field[::step]):
            return f"*/{step}"
    return None


def _progression(values: list[int]) -> str | None:
    """`2-30/4` for values at one distance, from three of them and if they are no plain range."""
    gaps = {after - before for before, after in pairwise(values)}
    if len(values) < 3 or len(gaps) > 1 or gaps == {1}:
        return None
    return f"{values[0]}-{values[-1]}/{gaps.pop()}"


def _runs(values: list[int]) -> Iterator[str]:
    """Three and more in a row as a range."""
    start = 0
    for end, value in enumerate(values):
        if end + 1 < len(values) and values[end + 1] == value + 1:
            continue
        if end - start >= 2:
            yield f"{values[start]}-{value}"
        else:
            yield from map(str, values[start : end + 1])
        start = end + 1
