"""Any crontab of Celery as a job: the same times, in an expression or a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from hypothesis import event, given, settings
from hypothesis import strategies as st

from supervisor.errors import NotTranslatable
from supervisor.features.adoption.expressions import (
    CRON_WEEKDAYS,
    DAYS,
    HOURS,
    MINUTES,
    MONTHS,
    compact,
    expression,
    rule_for,
)
from supervisor.features.adoption.import_celery import when_of
from supervisor.features.adoption.release import redbeat_schedule
from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of

APP = Celery("proj", set_as_current=False)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
YEARS = timedelta(days=6 * 366)
COUNT = 20


def subsets(field: range) -> st.SearchStrategy[set[int]]:
    """Any set, and the shapes that people write: ranges and steps."""
    edge = st.integers(field[0], field[-1])
    shape = st.builds(
        lambda a, b, step: set(range(min(a, b), max(a, b) + 1, step)), edge, edge, st.integers(1, 9)
    )
    stepped = st.integers(1, len(field) - 1).map(lambda step: set(field[::step]))
    return st.one_of(
        st.just(set(field)), stepped, shape, st.sets(st.sampled_from(field), min_size=1)
    )


@st.composite
def crontabs(draw: Callable[..., set[int]]) -> crontab:
    """Those that Celery takes: it refuses dates that are in no month."""
    months = draw(subsets(MONTHS))
    days = draw(subsets(DAYS))
    return crontab(
        minute=draw(subsets(MINUTES)),
        hour=draw(subsets(HOURS)),
        day_of_week=draw(subsets(CRON_WEEKDAYS)),
        day_of_month=days if min(days) <= 29 else {*days, 1},
        month_of_year=months,
        app=APP,
    )


def times_of_celery(source: crontab, at: datetime) -> Iterator[datetime]:
    while True:
        start, delta, _ = source.remaining_delta(at)
        at = (start + delta).astimezone(UTC)
        yield at


def times_of_job(keys: dict[str, Any], at: datetime) -> Iterator[datetime]:
    schedule = schedule_of(JobSpec.model_validate({"name": "j", "task": "t", **keys}))
    following = schedule.next_after(at)
    while following is not None:
        yield following
        following = schedule.next_after(following)


def first(times: Iterator[datetime], at: datetime) -> list[datetime]:
    return list(islice(takewhile(lambda time: time <= at + YEARS, times), COUNT))


def cron_of(source: crontab) -> str:
    return expression(
        minutes=source.minute,
        hours=source.hour,
        days=source.day_of_month,
        months=source.month_of_year,
        weekdays=source.day_of_week,
    )


@settings(max_examples=150, deadline=None)
@given(crontabs(), st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_every_crontab_of_celery_has_a_translation_with_its_times(
    source: crontab, naive: datetime
) -> None:
    at = naive.replace(microsecond=0, tzinfo=UTC)
    theirs = first(times_of_celery(source, at), at)
    keys = when_of(source, APP, NOW).values
    event(next(iter(keys)))
    assert first(times_of_job(keys, at), at) == theirs
    fields = source.minute, source.hour, source.day_of_month, source.month_of_year
    rule = {"rrule": rule_for(*fields, source.day_of_week)}
    assert first(times_of_job(rule, at), at) == theirs


@settings(max_examples=150, deadline=None)
@given(crontabs())
def test_a_crontab_that_became_a_job_is_released_as_it_was(source: crontab) -> None:
    keys = when_of(source, APP, NOW).values
    event(next(iter(keys)))
    job = JobSpec.model_validate({"name": "j", "task": "t", **keys})
    assert redbeat_schedule(job, APP, NOW) == source


@pytest.mark.parametrize(
    ("source", "cron"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute="*/5"), "*/5 * * * *"),
        (crontab(minute="0,30", hour="8-18"), "*/30 8-18 * * *"),
        (crontab(0, 2, day_of_week="mon-fri"), "0 2 * * 1-5"),
        (crontab(0, 2, day_of_week="sat,sunday"), "0 2 * * 0,6"),
        (crontab(0, 22, day_of_week="fri-mon"), "0 22 * * 0,1,5,6"),
        (crontab(0, 0, day_of_month="1,15"), "0 0 1,15 * *"),
        (crontab(0, 0, day_of_month=1, month_of_year="jan-mar,dec"), "0 0 1 1-3,12 *"),
        (crontab(0, 0, day_of_month=1, month_of_year="*/3"), "0 0 1 */3 *"),
        (crontab(minute={3, 18, 33, 48}), "3,18,33,48 * * * *"),
    ],
    ids=str,
)
def test_fields_are_as_short_as_a_person_would_write_them(source: crontab, cron: str) -> None:
    assert cron_of(source) == cron


@pytest.mark.parametrize(("days", "weekdays"), [("1-7", "mon"), ("*/2", "mon"), ("13", "*/2")])
def test_days_that_match_both_fields_are_a_rule(days: str, weekdays: str) -> None:
    source = crontab(0, 9, day_of_month=days, day_of_week=weekdays)
    assert "rrule" in when_of(source, APP, NOW).values


def test_two_values_are_a_step_only_where_it_comes_out_even() -> None:
    assert compact({0, 12}, HOURS) == "*/12"
    assert compact({1, 17}, DAYS) == "1,17"


@given(subsets(DAYS))
def test_a_field_holds_the_values_it_was_made_of(values: set[int]) -> None:
    assert crontab(day_of_month=compact(values, DAYS)).day_of_month == values


def test_a_field_without_values_never_fires() -> None:
    with pytest.raises(NotTranslatable, match="never fires"):
        rule_for({0}, set(), DAYS, MONTHS, CRON_WEEKDAYS)
