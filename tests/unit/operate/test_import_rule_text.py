"""Any crontab of Celery and any rule of RedBeat, as a job: the same times, or a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from dateutil.rrule import weekday
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from redbeat.schedules import rrule

from supervisor.errors import NotTranslatable
from supervisor.job.spec import JobSpec
from supervisor.operate.import_celery import when_of
from supervisor.operate.import_text import (
    CRON_WEEKDAYS,
    DAYS,
    HOURS,
    MINUTES,
    MONTHS,
    fault_of,
    rule_for,
    rule_text,
    said,
)
from supervisor.schedule import schedule_of

APP = Celery("proj", broker="redis://", set_as_current=False)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
YEARS = timedelta(days=6 * 366)
COUNT = 20


def times_of_job(keys: dict[str, Any], at: datetime) -> Iterator[datetime]:
    schedule = schedule_of(JobSpec.model_validate({"name": "j", "task": "t", **keys}))
    following = schedule.next_after(at)
    while following is not None:
        yield following
        following = schedule.next_after(following)


def times_of_celery(source: crontab, at: datetime) -> Iterator[datetime]:
    while True:
        start, delta, _ = source.remaining_delta(at)
        at = (start + delta).astimezone(UTC)
        yield at


def first(times: Iterable[datetime], at: datetime) -> list[datetime]:
    return list(islice(takewhile(lambda time: time <= at + YEARS, times), COUNT))


def some(field: range) -> st.SearchStrategy[set[int]]:
    return st.one_of(st.just(set(field)), st.sets(st.sampled_from(field), min_size=1))


@settings(max_examples=200, deadline=None)
@given(
    some(MINUTES),
    some(HOURS),
    st.sets(st.integers(1, 28), min_size=1),
    some(MONTHS),
    some(CRON_WEEKDAYS),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
)
def test_every_crontab_of_celery_has_a_translation(
    minutes: set[int],
    hours: set[int],
    days: set[int],
    months: set[int],
    weekdays: set[int],
    naive: datetime,
) -> None:
    source = crontab(minutes, hours, weekdays, days, months, app=APP)
    at = naive.replace(microsecond=0, tzinfo=UTC)
    theirs = first(times_of_celery(source, at), at)
    keys = when_of(source, APP, NOW).values
    event(next(iter(keys)))
    assert first(times_of_job(keys, at), at) == theirs
    rule = {"rrule": rule_for(minutes, hours, days, months, weekdays)}
    assert first(times_of_job(rule, at), at) == theirs


def numbers(*ranges: tuple[int, int]) -> st.SearchStrategy[list[int] | None]:
    values = st.one_of(*(st.integers(*ends) for ends in ranges))
    return st.one_of(st.none(), st.lists(values, min_size=1, max_size=4, unique=True))


WEEKDAY = st.builds(weekday, st.integers(0, 6), st.sampled_from([None, None, 1, 2, -1]))
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "bymonth": numbers((1, 12)),
    "bymonthday": numbers((1, 28), (-5, -1)),
    "byyearday": numbers((1, 366), (-366, -1)),
    "byweekno": numbers((1, 52), (-3, -1)),
    "byweekday": st.lists(WEEKDAY, min_size=1, max_size=4, unique=True),
    "byhour": numbers((0, 23)),
    "byminute": numbers((0, 59)),
    "bysecond": numbers((0, 59)),
    "bysetpos": numbers((1, 3), (-3, -1)),
    "count": st.integers(1, 100),
    "until": st.datetimes(datetime(2026, 2, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    "wkst": st.integers(0, 6),
}


@st.composite
def rules(draw: Callable[..., Any]) -> rrule:
    """Begun within the last days, or about to."""
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]))
    names = draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=4, unique=True))
    given = {name: draw(PARTS[name]) for name in names}
    if "count" in given:
        given.pop("until", None)  # dateutil warns of both
    ends = NOW - timedelta(days=9), NOW + timedelta(days=9)
    naive = draw(st.datetimes(*(end.replace(tzinfo=None) for end in ends)))
    try:
        interval = draw(st.integers(1, 8))
        return rrule(freq, naive.replace(tzinfo=UTC), interval=interval, app=APP, **given)
    except ValueError:  # dateutil sees that it has no times
        assume(False)


@settings(max_examples=400, deadline=None)
@given(rules())
def test_the_next_times_are_those_of_dateutils_rule(source: rrule) -> None:
    try:
        keys = when_of(source, APP, NOW).values
    except NotTranslatable:
        event("refused")
        return
    event(next(iter(keys)))
    if fault_of("j", said({"task": "t", **keys})):
        return  # it never comes true, for which dateutil searches until the year 9999
    assert first(times_of_job(keys, NOW), NOW) == first(source.rrule.xafter(NOW), NOW)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (
            crontab(30, 6, day_of_month="1,15", day_of_week="mon"),
            "FREQ=MONTHLY;BYMONTHDAY=1,15;BYDAY=MO;BYHOUR=6;BYMINUTE=30",
        ),
        (
            crontab(0, "6,18", day_of_month=13, day_of_week="fri,sat", month_of_year="1-3"),
            "FREQ=MONTHLY;BYMONTH=1,2,3;BYMONTHDAY=13;BYDAY=FR,SA;BYHOUR=6,18;BYMINUTE=0",
        ),
        (
            crontab("0,30", day_of_month=13, day_of_week="fri"),
            "FREQ=HOURLY;BYMONTHDAY=13;BYDAY=FR;BYMINUTE=0,30",
        ),
        (
            crontab(hour=9, day_of_month=13, day_of_week="fri"),
            "FREQ=MINUTELY;BYMONTHDAY=13;BYDAY=FR;BYHOUR=9",
        ),
    ],
    ids=str,
)
def test_days_that_must_match_both_fields_are_a_rule(source: crontab, rule: str) -> None:
    assert when_of(source, APP, NOW).values == {"rrule": rule, "timezone": "UTC"}


def test_a_field_without_values_never_fires() -> None:
    with pytest.raises(NotTranslatable, match="never fires"):
        rule_for({0}, set(), DAYS, MONTHS, CRON_WEEKDAYS)


def test_a_part_that_a_job_cannot_have_says_so() -> None:
    with pytest.raises(NotTranslatable, match="SECONDLY"):
        rule_text({"FREQ": ["SECONDLY"], "COUNT": []})
