"""`rrule`: the times of RFC 5545, by the clock of a zone, whenever they are asked for."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from supervisor.errors import InvalidSchedule
from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, schedule_of, ticks_after, ticks_between
from tests.waiting import scaled

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def rule(text: str, **keys: Any) -> Schedule:
    return schedule_of(JobSpec.model_validate({"name": "j", "task": "t", "rrule": text, **keys}))


def first(text: str, number: int = 3, after: datetime = NEW_YEAR, **keys: Any) -> list[str]:
    zone = ZoneInfo(keys.get("timezone", "UTC"))
    ticks = ticks_between(rule(text, **keys), after, after + 4000 * DAY, number)
    return [f"{tick.astimezone(zone):%Y-%m-%d %H:%M}" for tick in ticks]


def test_what_a_rule_leaves_open_is_the_first_of_january_at_midnight() -> None:
    assert first("FREQ=WEEKLY", 2) == ["2026-01-05 00:00", "2026-01-12 00:00"]
    assert first("FREQ=MONTHLY", 2) == ["2026-02-01 00:00", "2026-03-01 00:00"]
    assert first("FREQ=YEARLY", 2) == ["2027-01-01 00:00", "2028-01-01 00:00"]
    assert first("FREQ=DAILY", 1) == ["2026-01-02 00:00"]


TIMES = st.sampled_from(["", ";BYHOUR=9", ";BYHOUR=1,13;BYMINUTE=0,30", ";BYMINUTE=5"])
RULES = st.one_of(
    st.builds(
        "FREQ=YEARLY;INTERVAL={}{}".format,
        st.integers(1, 4),
        st.sampled_from(["", ";BYMONTH=2,3", ";BYMONTHDAY=1,-1", ";BYDAY=-1FR"]),
    ),
    st.builds(
        "FREQ=MONTHLY;INTERVAL={}{}".format,
        st.integers(1, 14),
        st.sampled_from(["", ";BYMONTHDAY=31,-2", ";BYDAY=2TU,-1FR", ";BYDAY=SA,SU;BYSETPOS=-1"]),
    ),
    st.builds(
        "FREQ=WEEKLY;INTERVAL={}{};WKST={}".format,
        st.integers(1, 5),
        st.sampled_from(["", ";BYDAY=MO,SU", ";BYDAY=TU;BYMONTH=1,2"]),
        st.sampled_from(["MO", "SU", "WE"]),
    ),
    st.builds(
        "FREQ=DAILY;INTERVAL={}{}".format,
        st.sampled_from([1, 2, 3, 5, 11, 30]),
        st.sampled_from(["", ";BYMONTH=1,12", ";BYDAY=FR", ";BYMONTHDAY=1,2,3,30"]),
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    RULES,
    TIMES,
    st.datetimes(datetime(2019, 1, 1), datetime(2026, 1, 1)),
    st.timedeltas(timedelta(), timedelta(days=900)),
)
def test_in_utc_the_times_are_those_that_dateutil_finds_from_the_beginning(
    days: str, times: str, start: datetime, later: timedelta
) -> None:
    start = start.replace(microsecond=0)
    text = f"{days}{times}"
    assume("BYSETPOS" not in text or "," not in times)  # refused here
    after = start + later
    until = after + 2000 * DAY
    theirs = rrulestr(f"{text};UNTIL={until:%Y%m%dT%H%M%S}", dtstart=start)
    expected = list(islice((time for time in theirs if time > after), 4))
    try:
        schedule = rule(text, start_at=start.isoformat())
    except InvalidSchedule:
        assert expected == []
        return
    found = ticks_between(schedule, after.replace(tzinfo=UTC), until.replace(tzinfo=UTC), 4)
    assert [tick.replace(tzinfo=None) for tick in found] == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' is not a part such as FREQ=WEEKLY"),
        ("BYDAY=MO", "FREQ is missing"),
        ("FREQ=DALY", "FREQ: 'DALY' is not one of YEARLY, MONTHLY, WEEKLY"),
        ("FREQ=QUARTERLY", "is not one of YEARLY, MONTHLY, WEEKLY, DAILY"),
        ("FREQ=HOURLY", "DAILY; for hours and minutes use 'every' or 'cron'"),
        ("FREQ=DAILY;BYHOR=3", "'BYHOR=3' is not a part such as FREQ=WEEKLY (did you mean 'BYHOUR"),
        ("FREQ=DAILY;FREQ=DAILY", "FREQ is given twice"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR: '24' is not a number from 0 to 23"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY: '0' is not a number from 1 to 31 or -31 to -1"),
        ("FREQ=WEEKLY;BYDAY=MON", "invalid 'BYDAY': MON"),
        ("FREQ=WEEKLY;BYDAY=2MO", "BYDAY: numbers count in a month"),
        ("FREQ=MONTHLY;BYDAY=MO,1SU", "BYDAY: give all days a number, or none"),
        ("FREQ=MONTHLY;BYDAY=1MO,-7TU", "BYDAY: numbers count in a month"),
        ("FREQ=YEARLY;BYMONTH=1;BYDAY=6MO", "BYDAY: numbers count in a month"),
        ("FREQ=YEARLY;BYDAY=+54MO", "or a year (up to 53)"),
        ("FREQ=YEARLY;BYWEEKNO=3;BYDAY=MO", "is not a part such as FREQ=WEEKLY; for DTSTART"),
        ("FREQ=YEARLY;BYYEARDAY=100", "is not a part such as FREQ=WEEKLY; for DTSTART"),
        ("FREQ=DAILY;BYHOUR=1,2;BYSETPOS=1", "BYSETPOS goes with one time of the day only"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL: '0' is not a number from 1 to 1,000"),
        ("FREQ=DAILY;INTERVAL=2", "INTERVAL needs 'start_at'"),
        ("FREQ=DAILY;COUNT=2", "for UNTIL and COUNT 'end_at'"),
        ("FREQ=DAILY;UNTIL=20260102", "for UNTIL and COUNT 'end_at'"),
        ("FREQ=DAILY;WKST=MONDAY", "invalid 'WKST': MONDAY"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "it never fires"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "for DTSTART use 'start_at'"),
        ("FREQ=DAILY\nEXDATE:20260101", "is not one of YEARLY"),
        ("FREQ=DAILY;EXDATE=20260101", "for EXDATE 'exclude'"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_the_reason(text: str, what: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        rule(text)
    assert what in str(refused.value)


def test_a_position_chooses_days() -> None:
    ends = first("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=1,-1", 4)
    assert [day[5:10] for day in ends] == ["01-30", "02-02", "02-27", "03-02"]


@pytest.mark.parametrize("interval", [1, 11, 49, 50])
@pytest.mark.parametrize("freq", ["YEARLY", "MONTHLY", "WEEKLY", "DAILY"])
def test_an_interval_of_decades_comes_again(interval: int, freq: str) -> None:
    start = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    pattern = rule(f"FREQ={freq};INTERVAL={interval}", start_at=f"{start:%Y-%m-%dT%H:%M:%SZ}")
    ticks = list(islice(ticks_after(pattern, start - DAY), 3))
    oracle = rrulestr(f"FREQ={freq};INTERVAL={interval}", dtstart=start)
    assert ticks == list(islice(oracle, 3))


HOURS, MINUTES = (",".join(map(str, range(most))) for most in (24, 60))
EACH_SECOND = f"BYHOUR={HOURS};BYMINUTE={MINUTES};BYSECOND={MINUTES}"
EACH_MINUTE = f"BYHOUR={HOURS};BYMINUTE={MINUTES}"


SLOWEST: dict[str, dict[str, Any]] = {
    "ended": {"rrule": f"FREQ=DAILY;{EACH_SECOND}", "end_at": "2026-01-05T00:00:00Z"},
    "no such day": {"rrule": "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"},
    "each second": {"rrule": f"FREQ=DAILY;{EACH_SECOND}"},
    "begun long ago": {
        "rrule": f"FREQ=DAILY;BYDAY=MO;{EACH_MINUTE}",
        "start_at": "1970-01-01T00:00:00",
    },
    "no such position": {"rrule": "FREQ=MONTHLY;BYMONTHDAY=1;BYSETPOS=200"},
    "no such leap day": {"rrule": "FREQ=DAILY;INTERVAL=1000;BYMONTH=2;BYMONTHDAY=29"},
    "weeks of centuries": {"rrule": "FREQ=WEEKLY;INTERVAL=1000;BYMONTH=2"},
    "all days excluded": {"rrule": f"FREQ=DAILY;BYDAY=MO;{EACH_SECOND}", "exclude": ["MON"]},
    "jitter of years": {"cron": "0 0 29 2 *", "jitter": "9000d"},
}


@pytest.mark.parametrize("name", SLOWEST)
def test_every_search_for_the_next_time_has_a_budget(name: str) -> None:
    """Of processor time, and many times of what it takes: a second is what others may wait."""
    keys = {"start_at": "2026-01-01T00:01:00Z", **SLOWEST[name]}
    began = time.process_time()
    try:
        schedule = schedule_of(JobSpec.model_validate({"name": "j", "task": "t", **keys}))
    except InvalidSchedule:
        schedule = None
    assert time.process_time() - began < scaled(3)
    for days in range(3) if schedule else ():
        began = time.process_time()
        schedule.next_after(NEW_YEAR + 400 * days * DAY)
        assert time.process_time() - began < scaled(1)
