from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import InvalidSchedule
from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, missed_before, schedule_of, ticks_between
from supervisor.times import EPOCH

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def cron(expression: str, timezone: str = "UTC") -> Schedule:
    return schedule_of(JobSpec(name="job", task="task", cron=expression, timezone=timezone))


def every(duration: Any) -> Schedule:
    return schedule_of(JobSpec(name="job", task="task", every=duration))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def local_times(expression: str, timezone: str, day: str) -> list[str]:
    """The ticks of one local day, as that day's clock shows them; `b`: in the second copy."""
    zone = ZoneInfo(timezone)
    start = datetime.fromisoformat(day)
    first, last = (
        (midnight.replace(tzinfo=zone).astimezone(UTC) - timedelta(microseconds=1))
        for midnight in (start, start + DAY)
    )
    ticks = (
        tick.astimezone(zone)
        for tick in ticks_between(cron(expression, timezone), first, last, 2000)
    )
    return [f"{tick:%H:%M}" + "b" * tick.fold for tick in ticks]


# --- every -------------------------------------------------------------------------------------


def test_every_is_a_grid_over_the_epoch_and_not_over_the_last_run() -> None:
    assert every("15m").next_after(at("2026-01-01T10:07:31Z")) == at("2026-01-01T10:15:00Z")
    assert every("7h").next_after(EPOCH) == EPOCH + timedelta(hours=7)


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
        ("0 0 2 * * *", "six fields; there is no field for seconds, use 'every'"),
        ("0 24 * * *", "'24' is not valid in the hour field; it may hold 0-23"),
        ("61 0 * * *", "'61' is not valid in the minute field"),
        ("0 0 * * FRI-MON", "'FRI-MON' is not valid in the day-of-week field"),
        ("0 0 31 2 *", "never fires"),
        ("0 0 30,31 FEB *", "never fires"),
        ("0 0 1-7/8 2 MON#5 *", "six fields"),
        ("0 0 */30 2 MON#5", "never fires"),
        ("*/90 * * * *", "step /90 is larger than the minute field"),
        ("@dayly", "did you mean '@daily'"),
        ("@reboot", "known are @hourly"),
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


def test_a_leap_day_is_waited_for() -> None:
    assert cron("0 0 29 2 *").next_after(NEW_YEAR) == at("2028-02-29T00:00:00Z")
    assert cron("0 0 29 2 *").next_after(at("2096-03-01T00:00Z")) == at("2104-02-29T00:00:00Z")


def test_a_schedule_is_made_once_for_equal_times() -> None:
    assert cron("5 4 * * *") is cron("5 4 * * *")
    assert cron("5 4 * * *") is not cron("5 4 * * *", "Europe/Berlin")


# --- clock changes -----------------------------------------------------------------------------
# New York goes from 02:00 to 03:00 on 8 March and repeats 01:00-02:00 on 1 November 2026,
# Berlin goes from 02:00 to 03:00 on 29 March and repeats 02:00-03:00 on 25 October 2026.

HOURS = [f"{hour:02}:00" for hour in range(24)]
EVEN_HOURS = HOURS[::2]
FIVE_MINUTES = [f"{hour:02}:{minute:02}" for hour in range(24) for minute in range(0, 60, 5)]


def without(times: list[str], hour: str) -> list[str]:
    return [time for time in times if not time.startswith(hour)]


def repeated(times: list[str], hour: str) -> list[str]:
    last = max(index for index, time in enumerate(times) if time.startswith(hour))
    copies = [f"{time}b" for time in times if time.startswith(hour)]
    return times[: last + 1] + copies + times[last + 1 :]


@pytest.mark.parametrize(
    ("timezone", "day"), [("America/New_York", "2026-03-08"), ("Europe/Berlin", "2026-03-29")]
)
@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("30 2 * * *", ["03:00"]),
        ("0,30 2 * * *", ["03:00"]),
        ("*/20 2 * * *", ["03:00"]),
        ("0 2,3 * * *", ["03:00"]),
        ("30 1,2,3 * * *", ["01:30", "03:00", "03:30"]),
        ("30 1 * * *", ["01:30"]),
        ("0 */2 * * *", ["00:00", "03:00", *EVEN_HOURS[2:]]),
        ("0 * * * *", without(HOURS, "02")),
        ("0 0-23 * * *", without(HOURS, "02")),
        ("*/5 * * * *", without(FIVE_MINUTES, "02")),
    ],
)
def test_what_the_clock_jumps_over_runs_once_at_the_end_of_the_gap(
    timezone: str, day: str, expression: str, times: list[str]
) -> None:
    assert local_times(expression, timezone, day) == times


@pytest.mark.parametrize(
    ("timezone", "day", "hour"),
    [("America/New_York", "2026-11-01", "01"), ("Europe/Berlin", "2026-10-25", "02")],
)
def test_of_a_repeated_hour_the_first_copy_runs_unless_every_hour_matches(
    timezone: str, day: str, hour: str
) -> None:
    def times(expression: str) -> list[str]:
        return local_times(expression, timezone, day)

    assert times(f"30 {int(hour)} * * *") == [f"{hour}:30"]
    assert times(f"*/20 {int(hour)} * * *") == [f"{hour}:00", f"{hour}:20", f"{hour}:40"]
    assert times("30 2 * * *") == ["02:30"]
    assert times("30 1 * * *") == ["01:30"]
    assert times("0 */2 * * *") == EVEN_HOURS
    assert times("0 * * * *") == repeated(HOURS, hour)
    assert times("0 0-23 * * *") == repeated(HOURS, hour)
    assert times("*/5 * * * *") == repeated(FIVE_MINUTES, hour)


def test_starting_inside_a_repeated_hour_neither_repeats_nor_loses() -> None:
    second_copy = at("2026-11-01T01:10:00-05:00")
    following = cron("30 1 * * *", "America/New_York").next_after(second_copy)
    assert following == at("2026-11-02T01:30:00-05:00")


# --- what was missed ---------------------------------------------------------------------------


def test_the_first_ticks_of_a_span_are_bounded_by_the_limit() -> None:
    hour = timedelta(hours=1)
    for schedule in (every("5m"), cron("*/5 * * * *")):
        assert len(ticks_between(schedule, NEW_YEAR, NEW_YEAR + hour, 100)) == 12
        assert ticks_between(schedule, NEW_YEAR, NEW_YEAR + hour, 1) == [at("2026-01-01T00:05Z")]
        assert ticks_between(schedule, NEW_YEAR, NEW_YEAR + hour, 0) == []
        assert ticks_between(schedule, NEW_YEAR + hour, NEW_YEAR, 5) == []


ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/Havana",
    "America/St_Johns",  # changed its clocks at 00:01 until 2011
    "America/Sao_Paulo",  # changed them at midnight
    "Pacific/Apia",
]
CRONS = ["*/20 2 * * *", "0 * * * *", "*/7 * * * *", "15 0,23 * * *", "0 0 L * *", "0 * 1-7 * *"]


@given(
    st.one_of(
        st.builds(cron, st.sampled_from(CRONS), st.sampled_from(ZONES)),
        st.builds(every, st.integers(60, 100_000)),
    ),
    st.datetimes(datetime(2006, 1, 1), datetime(2013, 1, 1)),
    st.timedeltas(timedelta(), timedelta(days=12)),
    st.integers(0, 20),
)
def test_missed_ticks_are_counted_as_if_walked(
    schedule: Schedule, after: datetime, span: timedelta, keep: int
) -> None:
    after = after.replace(tzinfo=UTC)
    walked = ticks_between(schedule, after, after + span, 1_000_000)
    kept = walked[max(0, len(walked) - keep) :]
    assert missed_before(schedule, after, after + span, keep) == (len(walked), kept)


CLOCK_CHANGES = [
    ("America/New_York", "2026-03-08T07:00Z"),
    ("America/New_York", "2026-11-01T06:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    ("America/Havana", "2026-11-01T05:00Z"),  # back from 01:00 to midnight
    ("America/St_Johns", "2010-11-07T02:31Z"),  # back from 00:01 to the day before
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),  # forward at midnight
    ("Pacific/Apia", "2011-12-30T10:00Z"),  # a day left out
]


@pytest.mark.parametrize(("timezone", "change"), CLOCK_CHANGES)
@pytest.mark.parametrize("expression", CRONS)
def test_missed_ticks_around_a_clock_change_are_counted_as_if_walked(
    expression: str, timezone: str, change: str
) -> None:
    schedule = cron(expression, timezone)
    for hours in (-30, -1, -0.5, 0, 0.25, 0.75, 1, 30, 60):
        until = at(change) + timedelta(hours=hours)
        walked = ticks_between(schedule, until - 3 * DAY, until, 1_000_000)
        assert missed_before(schedule, until - 3 * DAY, until, 0) == (len(walked), [])
        assert missed_before(schedule, until - 3 * DAY, until, 2) == (len(walked), walked[-2:])


def test_nothing_is_missed_in_no_time() -> None:
    for schedule in (every("5m"), cron("*/5 * * * *", "Europe/Berlin")):
        assert missed_before(schedule, NEW_YEAR, NEW_YEAR, 5) == (0, [])
        assert missed_before(schedule, NEW_YEAR + DAY, NEW_YEAR, 5) == (0, [])
