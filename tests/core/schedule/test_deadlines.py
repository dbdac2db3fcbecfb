"""By when the run of a tick has to have succeeded: tables across both clock changes, and laws."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of, ticks_after
from supervisor.schedule.deadlines import due_at, next_due_at
from supervisor.times import reading

DAY, HOUR = timedelta(days=1), timedelta(hours=1)

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago")


def spec_of(due_by: Any, zone: str = "Europe/Berlin", **keys: Any) -> JobSpec:
    times = keys if {"cron", "at", "every"} & keys.keys() else {"cron": "0 2 * * *", **keys}
    return JobSpec(name="nightly", task="t", timezone=zone, due_by=due_by, **times)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


TABLE = [
    # On a plain day, in winter: 02:00 and 06:00 of Berlin.
    ("06:00", "2027-01-10T01:00", "2027-01-10T05:00"),
    ("45m", "2027-01-10T01:00", "2027-01-10T01:45"),
    # Before midnight, of the next day; a tick at the very time too.
    ("06:00", "2027-01-10T21:00", "2027-01-11T05:00"),
    ("06:00", "2027-01-10T05:00", "2027-01-11T05:00"),
    ("06:00", "2027-01-10T04:59", "2027-01-10T05:00"),
    ("00:00", "2027-01-10T01:00", "2027-01-10T23:00"),
    # The night of 28 March has no 02:30: the end of the gap, 03:00, which is 01:00 UTC.
    ("02:30", "2027-03-27T23:00", "2027-03-28T01:00"),
    ("02:30", "2027-03-28T00:59", "2027-03-28T01:00"),
    ("02:30", "2027-03-28T01:00", "2027-03-29T00:30"),
    ("03:00", "2027-03-28T00:30", "2027-03-28T01:00"),
    ("06:00", "2027-03-28T00:00", "2027-03-28T04:00"),
    ("45m", "2027-03-28T00:30", "2027-03-28T01:15"),
    # That of 31 October has it twice, at 00:30 and 01:30 UTC: the first.
    ("02:30", "2027-10-30T23:00", "2027-10-31T00:30"),
    ("02:30", "2027-10-31T00:30", "2027-11-01T01:30"),
    ("02:30", "2027-10-31T01:00", "2027-11-01T01:30"),
    ("06:00", "2027-10-31T00:00", "2027-10-31T05:00"),
    ("45m", "2027-10-31T00:30", "2027-10-31T01:15"),
]


@pytest.mark.parametrize(("due_by", "tick", "expected"), TABLE)
def test_a_tick_is_due_by_the_next_such_time(due_by: str, tick: str, expected: str) -> None:
    assert due_at(spec_of(due_by), utc(tick)) == utc(expected)


def test_a_day_that_a_zone_left_out_has_no_deadline() -> None:
    """Samoa had no 30 December 2011."""
    samoa = ZoneInfo("Pacific/Apia")
    tick = datetime(2011, 12, 29, 22, tzinfo=samoa)
    assert due_at(spec_of("06:00", "Pacific/Apia"), tick) == datetime(2011, 12, 31, 6, tzinfo=samoa)


@pytest.mark.parametrize(
    ("keys", "answered_until", "expected"),
    [
        # A success of a run that began at the tick answers it; one of just before does not.
        ({}, "2027-01-10T01:00", "2027-01-11T05:00"),
        ({}, "2027-01-10T00:59:59.999", "2027-01-10T05:00"),
        # Of many ticks before the deadline the last one counts.
        ({"every": "15m"}, "2027-01-10T04:45", "2027-01-11T05:00"),
        ({"every": "15m"}, "2027-01-10T04:44", "2027-01-10T05:00"),
        # Two a day, on both sides of it.
        ({"cron": "0 2,14 * * *"}, "2027-01-10T01:00", "2027-01-11T05:00"),
        ({"cron": "0 2,14 * * *"}, "2027-01-10T00:00", "2027-01-10T05:00"),
        # Of a day that is excluded nothing is due.
        ({"exclude": ["2027-01-10..2027-01-12"]}, "2027-01-09T01:00", "2027-01-13T05:00"),
        # After the last tick there is none.
        ({"end_at": "2027-01-10T00:00:00"}, "2027-01-09T01:00", None),
    ],
)
def test_the_first_tick_without_an_answer_is_due(
    keys: dict[str, Any], answered_until: str, expected: str | None
) -> None:
    found = next_due_at(spec_of("06:00", **keys), utc(answered_until))
    assert found == (utc(expected) if expected else None)


def test_nothing_is_due_without_the_key_or_before_anything_is_known() -> None:
    assert next_due_at(spec_of(None), utc("2027-01-10T01:00")) is None
    assert next_due_at(spec_of("06:00"), None) is None


def test_beyond_the_calendar_nothing_is_due() -> None:
    last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert due_at(spec_of("45m", "UTC"), last) is None
    assert due_at(spec_of("06:00", "UTC"), last) is None


clocks = st.times().map(lambda clock: clock.replace(second=0, microsecond=0))
instants = st.datetimes(datetime(2026, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC))


@given(instants, clocks, st.sampled_from(ZONES))
def test_a_deadline_is_later_and_within_a_day_and_an_hour(
    tick: datetime, clock: time, zone: str
) -> None:
    due = due_at(spec_of(f"{clock:%H:%M}", zone), tick)
    assert due is not None
    assert tick < due <= tick + DAY + HOUR


@given(instants, clocks, st.sampled_from(ZONES))
def test_the_clock_shows_it_first_then_or_jumps_over_it(
    tick: datetime, clock: time, zone: str
) -> None:
    due = due_at(spec_of(f"{clock:%H:%M}", zone), tick)
    assert due is not None
    local = datetime.combine(due.astimezone(ZoneInfo(zone)).date(), clock)
    shown = reading(local, ZoneInfo(zone))
    assert due == shown.first
    assert (due.astimezone(ZoneInfo(zone)).time() == clock) != bool(shown.gap)


@given(instants, st.timedeltas(timedelta(), 3 * DAY), clocks, st.sampled_from(ZONES))
def test_an_earlier_tick_is_never_due_later(
    tick: datetime, later: timedelta, clock: time, zone: str
) -> None:
    spec = spec_of(f"{clock:%H:%M}", zone)
    first, second = due_at(spec, tick), due_at(spec, tick + later)
    assert first and second and first <= second


@given(instants, clocks, st.sampled_from(ZONES), st.sampled_from(["15m", "1h", "7h", "25h"]))
def test_what_is_due_next_is_the_earliest_of_all_that_are_not_answered(
    answered_until: datetime, clock: time, zone: str, every: str
) -> None:
    spec = spec_of(f"{clock:%H:%M}", zone, every=every)
    following = islice(ticks_after(schedule_of(spec), answered_until), 100)
    dues = [due for tick in following if (due := due_at(spec, tick))]
    assume(dues)
    assert next_due_at(spec, answered_until) == min(dues)
