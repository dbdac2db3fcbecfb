from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import InvalidSchedule
from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, schedule_of, ticks_between
from supervisor.times import EPOCH

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def cron(expression: str, timezone: str = "UTC") -> Schedule:
    return schedule_of(JobSpec(name="job", task="task", cron=expression, timezone=timezone))


def every(duration: Any) -> Schedule:
    return schedule_of(JobSpec(name="job", task="task", every=duration))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


# --- every -------------------------------------------------------------------------------------


@given(st.integers(1000, 10**9), st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)))
def test_every_never_drifts(milliseconds: int, moment: datetime) -> None:
    step = timedelta(milliseconds=milliseconds)
    moment = moment.replace(tzinfo=UTC)
    following = every(step).next_after(moment)
    assert following is not None
    assert (following - EPOCH) % step == timedelta()
    assert moment < following <= moment + step


def test_there_is_no_time_after_the_end_of_the_calendar() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    assert every("1h").next_after(end) is None
    assert cron("0 * * * *").next_after(end) is None
    assert cron("0 5 * * *", "America/New_York").next_after(end) is None


# --- cron --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nickname", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_a_nickname_names_the_same_times_as_its_five_fields(nickname: str, expression: str) -> None:
    until = NEW_YEAR + 800 * DAY
    ticks = ticks_between(cron(nickname), NEW_YEAR, until, 20)
    assert ticks == ticks_between(cron(expression), NEW_YEAR, until, 20) != []


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields; cron has five: minute hour"),
        ("0 0 2 * * *", "six fields; cron has five, without seconds or a year; for less than a"),
        ("0 24 * * *", "'24' is not valid in the hour field; it may hold 0-23"),
        ("61 0 * * *", "'61' is not valid in the minute field"),
        ("0 0 * * 6-7/2,7-2", "the range '7-2' runs backwards"),
        ("0 22-2/3 * * *", "the range '22-2/3' runs backwards"),
        ("0 0 * nov-feb *", "the range 'NOV-FEB' runs backwards"),
        ("0 0 31 2 *", "never fires"),
        ("0 0 30,31 FEB *", "never fires"),
        ("0 0 1-7/8 2 MON#5 *", "six fields"),
        ("0 0 */30 2 MON#5", "never fires"),
        ("*/90 * * * *", "step /90 is larger than the minute field"),
        ("@dayly", "known are @hourly, @daily"),
        ("@biweekly", "known are @hourly, @daily"),
        ("0 0 15,LW/3 * *", "'LW/3': the last day has no step"),
        ("L/2 * * * *", "'L/2' is not valid in the minute field"),
        ("0 0 * * " + "1," * 300, "400 are allowed"),
        ("0 0 * * " + "9" * 300, "not valid in the day-of-week field"),
    ],
)
def test_an_expression_that_names_no_times_is_refused_with_the_reason(
    expression: str, text: str
) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        cron(expression)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("50-50/5 * * * *", "50 * * * *"),
        ("0 21-21/2 * * *", "0 21 * * *"),
        ("0 0 3,9-9/2 * *", "0 0 3,9 * *"),
        ("0 0 1 mar-3/2 *", "0 0 1 3 *"),
        ("0 0 * * MON-1/2", "0 0 * * 1"),
    ],
)
def test_a_range_of_one_value_has_no_next_step(expression: str, same: str) -> None:
    """As in Celery, Quartz and Debian's cron; a step after a value goes on to the field's end."""
    until = NEW_YEAR + 800 * DAY
    ticks = ticks_between(cron(expression), NEW_YEAR, until, 50)
    assert ticks == ticks_between(cron(same), NEW_YEAR, until, 50)


def test_a_leap_day_is_waited_for() -> None:
    assert cron("0 0 29 2 *").next_after(NEW_YEAR) == at("2028-02-29T00:00:00Z")
    assert cron("0 0 29 2 *").next_after(at("2096-03-01T00:00Z")) == at("2104-02-29T00:00:00Z")


def test_a_schedule_is_made_once_for_equal_times() -> None:
    assert cron("5 4 * * *") is cron("5 4 * * *")
    assert cron("5 4 * * *") is not cron("5 4 * * *", "Europe/Berlin")


def test_starting_inside_a_repeated_hour_neither_repeats_nor_loses() -> None:
    second_copy = at("2026-11-01T01:10:00-05:00")
    following = cron("30 1 * * *", "America/New_York").next_after(second_copy)
    assert following == at("2026-11-02T01:30:00-05:00")


def test_the_first_ticks_of_a_span_are_bounded_by_the_limit() -> None:
    hour = timedelta(hours=1)
    for schedule in (every("5m"), cron("*/5 * * * *")):
        assert len(ticks_between(schedule, NEW_YEAR, NEW_YEAR + hour, 100)) == 12
        assert ticks_between(schedule, NEW_YEAR, NEW_YEAR + hour, 1) == [at("2026-01-01T00:05Z")]
        assert ticks_between(schedule, NEW_YEAR, NEW_YEAR + hour, 0) == []
        assert ticks_between(schedule, NEW_YEAR + hour, NEW_YEAR, 5) == []
