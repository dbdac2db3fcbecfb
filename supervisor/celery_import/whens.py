"""A Celery schedule object -> the keys of a job that say when it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from redbeat.schedules import rrule

from supervisor.celery_import.rules import when_of_rule
from supervisor.celery_import.zones import zone_of
from supervisor.errors import NotTranslatable
from supervisor.importing.cron_text import expression
from supervisor.importing.rule_text import rule_for
from supervisor.times.durations import LONGEST_SECONDS, render

SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)

#: Rounded to the clock, these intervals are times of the clock.
ON_THE_CLOCK = {
    timedelta(minutes=1): "* * * * *",
    timedelta(hours=1): "0 * * * *",
    timedelta(days=1): "0 0 * * *",
}


@dataclass(frozen=True, slots=True)
class When:
    """values: the keys; lost: what of the schedule they do not say."""

    values: dict[str, Any]
    lost: list[str] = field(default_factory=list)


def when_of(source: Any, app: Celery, now: datetime, *, relative: bool = False) -> When:
    """relative: of an entry that gives its interval as a number or timedelta.

    Raises NotTranslatable.
    """
    if isinstance(source, int | float) and not isinstance(source, bool):
        source = _seconds(source)
    if isinstance(source, timedelta):
        source = schedule(source, relative)
    if isinstance(source, rrule):
        return When(when_of_rule(source, now))
    if type(source) is crontab:
        return When(_clock_times(source, app))
    if type(source) is schedule:
        return _interval(source, app)
    if isinstance(source, solar):
        raise NotTranslatable("there is no key for the times of the sun")
    if isinstance(source, BaseSchedule):
        raise NotTranslatable(f"a schedule class of its own, {type(source).__qualname__}")
    raise NotTranslatable(f"it has no schedule but {source!r}")


def _seconds(number: float) -> timedelta:
    try:
        return timedelta(seconds=number)
    except (OverflowError, ValueError):
        raise NotTranslatable(f"{number} is no number of seconds") from None


def _clock_times(source: Any, app: Celery) -> dict[str, Any]:
    """`cron`, or `rrule` where a day has to match two fields in a way that cron has not."""
    if source.nowfun is not None:
        raise NotTranslatable("it has a clock of its own (nowfun)")
    fields = {
        "minutes": source.minute,
        "hours": source.hour,
        "days": source.day_of_month,
        "months": source.month_of_year,
        "weekdays": source.day_of_week,
    }
    zone = zone_of(app)
    try:
        return {"cron": expression(**fields), "timezone": zone}
    except NotTranslatable:
        return {"rrule": rule_for(**fields), "timezone": zone}


def _interval(source: Any, app: Celery) -> When:
    every = source.run_every
    if not isinstance(every, timedelta):
        raise NotTranslatable("an interval that is not given")
    if not source.relative:
        return When({"every": every_text(every)})
    if every in ON_THE_CLOCK:
        return When({"cron": ON_THE_CLOCK[every], "timezone": zone_of(app)})
    if every < timedelta(minutes=1):  # rounded to whole seconds, as the grid is
        return When({"every": every_text(every)})
    lost = "'relative' rounds its times to the clock, the grid of 'every' may not"
    return When({"every": every_text(every)}, [lost])


def every_text(every: timedelta) -> str:
    """Raises NotTranslatable for an interval that `every` cannot hold."""
    if every < SECOND:
        raise NotTranslatable("an interval under a second")
    if every % MILLISECOND or every.total_seconds() > LONGEST_SECONDS:
        raise NotTranslatable(f"an interval of {every.total_seconds()} seconds")
    return render(every)
