"""`phase`, `at`, `start_at`, `end_at`, `exclude` and `jitter`, alone and on top of each other."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, missed_before, schedule_of, ticks_between
from tests.waiting import scaled

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = 365 * DAY


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "job", "task": "t", **keys})


def schedule(**keys: Any) -> Schedule:
    return schedule_of(job(**keys))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def first(number: int, after: datetime = NEW_YEAR, **keys: Any) -> list[str]:
    zone = job(**keys).zone
    ticks = ticks_between(schedule(**keys), after, after + 3 * YEAR, number)
    return [f"{tick.astimezone(zone):%m-%d %H:%M:%S}" for tick in ticks]


# --- phase, at, start_at, end_at -----------------------------------------------------------------


def test_a_phase_moves_the_grid() -> None:
    assert first(2, every="1m", phase="20s") == ["01-01 00:00:20", "01-01 00:01:20"]
    assert first(1, every="1h", phase="0s") == first(1, every="1h")


def test_a_list_of_times_is_read_in_the_zone_and_run_in_order() -> None:
    times = ["2026-12-24T18:00:00", "2026-06-01T10:00:00Z", "2026-07-01 08:00+02:00"]
    assert first(9, at=times, timezone="Europe/Berlin") == [
        "06-01 12:00:00",
        "07-01 08:00:00",
        "12-24 18:00:00",
    ]
    assert job(at=times).when == job(at=times[::-1]).when


def test_several_cron_lines_run_at_the_times_of_each() -> None:
    office = ["0 9 * * MON-FRI", "0 12 * * SAT", "0 9 1 * *"]
    assert first(5, cron=office, timezone="Europe/Berlin") == [
        "01-01 09:00:00",  # a Thursday, and the first: one tick
        "01-02 09:00:00",
        "01-03 12:00:00",
        "01-05 09:00:00",
        "01-06 09:00:00",
    ]
    assert job(cron=office).when == job(cron=office[::-1]).when
    assert job(cron=office[:1]).when == job(cron=office[0]).when


def test_of_several_cron_lines_each_has_its_own_rule_for_clock_changes() -> None:
    before = at("2026-10-24T23:30Z")  # in Berlin 02:00-03:00 comes twice from 00:00 UTC on
    lines = ["30 2 * * *", "0 * * * *"]
    assert first(6, before, cron=lines, timezone="Europe/Berlin") == [
        "10-25 02:00:00",
        "10-25 02:30:00",
        "10-25 02:00:00",
        "10-25 03:00:00",
        "10-25 04:00:00",
        "10-25 05:00:00",
    ]


def test_a_job_runs_from_its_start_and_not_at_its_end() -> None:
    keys = {"every": "1h", "start_at": "2026-02-01T10:00:00", "end_at": "2026-02-01T12:00:00"}
    assert first(9, **keys) == ["02-01 10:00:00", "02-01 11:00:00"]
    berlin = {**keys, "timezone": "Europe/Berlin"}
    assert schedule(**berlin).next_after(NEW_YEAR) == at("2026-02-01T09:00Z")
    assert first(1, every="7h", start_at="2026-02-01T10:00:00") != ["02-01 10:00:00"]


def test_a_local_time_in_a_gap_is_its_end_and_in_a_repeated_hour_the_first() -> None:
    times = ["2026-03-29T02:30:00", "2026-10-25T02:30:00"]
    found = schedule(at=times, timezone="Europe/Berlin")
    assert ticks_between(found, NEW_YEAR, NEW_YEAR + YEAR, 9) == [
        at("2026-03-29T01:00Z"),
        at("2026-10-25T00:30Z"),
    ]


# --- exclude -------------------------------------------------------------------------------------


def test_days_of_the_week_dates_and_spans_have_no_ticks() -> None:
    keys = {
        "cron": "0 9,18 * * *",
        "timezone": "Europe/Berlin",
        "exclude": [
            "SAT-SUN",
            "2026-01-01..2026-01-06",
            "2026-01-08T12:00:00..2026-01-12T18:00:00",
        ],
    }
    assert first(4, **keys) == [
        "01-07 09:00:00",
        "01-07 18:00:00",
        "01-08 09:00:00",
        "01-12 18:00:00",
    ]


def test_a_day_is_excluded_by_the_clock_of_the_job() -> None:
    keys = {"every": "1h", "exclude": ["2026-01-02"]}
    tokyo = schedule(**keys, timezone="Asia/Tokyo")
    excluded = [NEW_YEAR + n * timedelta(hours=1) for n in range(72)]
    excluded = [tick for tick in excluded if tokyo.next_after(tick - timedelta(seconds=1)) != tick]
    assert (excluded[0], len(excluded)) == (at("2026-01-02T00:00+09:00"), 24)


def test_the_order_and_the_words_of_exclusions_make_no_difference() -> None:
    one = job(every="1m", exclude=["2026-12-25", "sat", "2026-12-24", "MON-TUE"])
    other = job(every="1m", exclude=["MON", "TUE", "SAT", "2026-12-24..2026-12-25"])
    assert one.when == other.when
    assert one.exclude == ("MON", "TUE", "SAT", "2026-12-24..2026-12-25")


def test_a_job_whose_every_time_is_excluded_has_no_next_and_says_so_soon() -> None:
    started = time.process_time()
    assert schedule(cron="* 2 * * SAT", exclude=["SAT"]).next_after(NEW_YEAR) is None
    assert time.process_time() - started < scaled(1)


def test_where_clocks_go_back_over_midnight_an_excluded_day_still_ends() -> None:
    # St. John's went back from 00:01 to 23:01 of the day before.
    layered = schedule(every="10m", exclude=["SUN"], timezone="America/St_Johns")
    around = at("2010-11-07T00:00Z")
    ticks = ticks_between(layered, around, around + 3 * DAY, 500)
    assert len(ticks) == missed_before(layered, around, around + 3 * DAY, 0)[0]
    assert {
        tick.astimezone(job(every="1m", timezone="America/St_Johns").zone).weekday()
        for tick in ticks
    } <= {0, 1, 5}


# --- jitter --------------------------------------------------------------------------------------


def test_jitter_shifts_each_tick_by_less_than_the_way_to_the_next() -> None:
    plain, shifted = schedule(every="10m"), schedule(every="10m", jitter="1h")
    ticks = ticks_between(shifted, NEW_YEAR, NEW_YEAR + DAY, 1000)
    named = ticks_between(plain, NEW_YEAR - timedelta(seconds=1), NEW_YEAR + DAY, 1000)
    assert all(
        name <= tick < later for tick, (name, later) in zip(ticks, pairwise(named), strict=False)
    )
    assert len({tick - name for tick, name in zip(ticks, named, strict=False)}) > 50


def test_jitter_is_at_most_what_is_asked_for_and_uses_all_of_it() -> None:
    shifted = schedule(cron="0 2 * * *", jitter="5m")
    ticks = ticks_between(shifted, NEW_YEAR, NEW_YEAR + 10 * YEAR, 5000)
    minutes = [tick.hour * 60 + tick.minute + tick.second / 60 - 120 for tick in ticks]
    assert len(ticks) == 3650
    assert 0 <= min(minutes) < 0.1
    assert 4.9 < max(minutes) <= 5
    assert 2.3 < sum(minutes) / len(minutes) < 2.7


def test_jitter_is_the_same_everywhere_and_differs_from_job_to_job() -> None:
    assert first(3, cron="0 2 * * *", jitter="5m") == [
        "01-01 02:03:19",
        "01-02 02:00:21",
        "01-03 02:04:09",
    ]
    assert first(9, cron="0 2 * * *", jitter="5m") != first(
        9, cron="0 2 * * *", jitter="5m", name="other"
    )


def test_a_shifted_tick_does_not_pass_the_end_of_its_job() -> None:
    keys = {"at": ["2026-02-01T10:00:00"], "end_at": "2026-02-01T10:00:03", "jitter": "1h"}
    for number in range(50):
        (tick,) = first(9, **keys, name=f"job-{number}")
        assert "02-01 10:00:00" <= tick < "02-01 10:00:03"


# --- all together --------------------------------------------------------------------------------

NAMED: list[dict[str, Any]] = [
    {"every": "7m", "phase": "90s"},
    {"every": "100s"},
    {"cron": "*/20 0-4 * * *"},
    {"cron": "* * * * *"},
    {"cron": "30 2 * * *", "dst": {"gap": "skip", "fold": "both"}},
    {"cron": "15,45 1-3 * * *", "dst": {"fold": "second"}},
    {"cron": ["30 2 * * *", "*/20 * * * SUN", "0 1-3 * * *"], "dst": {"fold": "both"}},
    {"cron": ["0 9 * * 1-5", "0 12 * * 6", "30 0-3 * * *"], "dst": {"gap": "skip"}},
    {"rrule": "FREQ=WEEKLY;BYDAY=SU;BYHOUR=1,2;BYMINUTE=7,14", "start_at": "2026-03-27T00:00:00"},
    {"rrule": "FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=0,30", "dst": {"fold": "both"}},
    {"at": ["2026-03-29T02:30:00", "2026-03-29T04:00:00", "2026-10-25T02:30:00"]},
]
LIMITS: list[dict[str, Any]] = [
    {},
    {"end_at": "2026-10-25T02:30:00"},
    {"start_at": "2026-03-28T12:00:00", "end_at": "2026-10-26T12:00:00Z"},
]
EXCLUSIONS: list[list[str]] = [
    [],
    ["SUN"],
    ["SAT", "2026-03-30", "2026-10-26..2026-10-27"],
    ["2026-03-29T01:10:00..2026-03-29T03:20:00", "2026-10-25T00:10:00Z..2026-10-25T00:50:00Z"],
]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(NAMED),
    st.sampled_from(LIMITS),
    st.sampled_from(EXCLUSIONS),
    st.sampled_from([None, "1s", "45s", "10m", "5h"]),
    st.sampled_from(["Europe/Berlin", "UTC", "America/New_York"]),
    st.sampled_from(["2026-03-28T20:00Z", "2026-10-24T20:00Z", "2026-03-07T20:00Z"]),
    st.timedeltas(timedelta(), timedelta(hours=30)),
    st.timedeltas(timedelta(), timedelta(hours=40)),
    st.integers(0, 12),
)
def test_any_combination_is_in_order_and_counted_as_if_walked(
    named: dict[str, Any],
    limits: dict[str, Any],
    exclude: list[str],
    jitter: str | None,
    timezone: str,
    start: str,
    skipped: timedelta,
    span: timedelta,
    keep: int,
) -> None:
    keys = {**limits, **named, "exclude": exclude, "jitter": jitter, "timezone": timezone}
    layered = schedule(**keys)
    after = at(start) + skipped
    walked, moment = [], after
    while (tick := layered.next_after(moment)) is not None and tick <= after + span:
        assert tick > moment
        walked.append(tick)
        moment = tick
    assert ticks_between(layered, after, after + span, 100_000) == walked
    kept = walked[max(0, len(walked) - keep) :]
    assert missed_before(layered, after, after + span, keep) == (len(walked), kept)
    for tick in walked[:5]:
        assert layered.next_after(tick - timedelta(microseconds=1)) == tick


@pytest.mark.parametrize("named", [*NAMED, {"rrule": "FREQ=WEEKLY"}], ids=str)
def test_a_spec_that_comes_back_from_the_ledger_names_the_same_times(named: dict[str, Any]) -> None:
    spec = job(
        **{"start_at": "2026-01-01T00:00:00", **named},
        end_at="2026-12-31T00:00:00Z",
        exclude=["SUN", "2026-05-01"],
        jitter="30s",
    )
    again = JobSpec.model_validate_json(spec.model_dump_json(exclude_defaults=True))
    assert again == spec
    assert again.when == spec.when
    assert schedule_of(again) is schedule_of(spec)


def test_whatever_decides_the_times_is_in_when() -> None:
    base = {"every": "10m"}
    others = [
        {"every": "11m"},
        {"phase": "1s"},
        {"timezone": "Europe/Berlin"},
        {"start_at": "2026-01-01T00:00:00"},
        {"end_at": "2026-01-01T00:00:00"},
        {"jitter": "5s"},
        {"exclude": ["SAT"]},
        {"dst": {"gap": "skip"}},
    ]
    whens = [job(**{**base, **other}).when for other in [{}, *others]]
    assert len(set(whens)) == len(whens)
    assert job(**base, overlap="allow", description="x").when == job(**base).when


def test_a_schedule_is_shown_in_a_few_words() -> None:
    assert job(cron="0 2 * * *").schedule == "0 2 * * *"
    assert job(cron=["0 12 * * 6", "0 9 * * 1-5"]).schedule == "0 12 * * 6 and 0 9 * * 1-5"
    assert job(cron=["0 1 * * *", "0 2 * * *", "0 3 * * *"]).schedule == "0 1 * * * and 2 more"
    assert job(every="90s").schedule == "every 1m30s"
    assert job(every="1m", phase="20s").schedule == "every 1m +20s"
    assert job(rrule="FREQ=DAILY").schedule == "FREQ=DAILY"
    times = ["2026-12-24T18:00:00", "2026-12-25T18:00:00"]
    assert job(at=times[:1]).schedule == "at 2026-12-24T18:00:00"
    assert job(at=times).schedule == "at 2026-12-24T18:00:00 and 1 more"


HOURS, MINUTES = (",".join(map(str, range(most))) for most in (24, 60))
EACH_MINUTE = f"FREQ=DAILY;BYHOUR={HOURS};BYMINUTE={MINUTES}"


@pytest.mark.parametrize(
    "named",
    [
        {"every": "1m"},
        {"cron": "* * * * *", "timezone": "America/New_York"},
        {"cron": ["* * * * *", "0 9 * * 1-5", "*/5 * 1 * *"], "timezone": "America/New_York"},
        {"rrule": EACH_MINUTE, "timezone": "America/New_York"},
    ],
    ids=str,
)
def test_a_year_of_missed_minutes_with_all_layers_is_counted_quickly(named: dict[str, Any]) -> None:
    days = [NEW_YEAR.date() + number * DAY for number in range(365)]
    spans = [f"{day}T10:00:00..{day}T11:30:00" for day in days]
    layered = schedule(**named, exclude=["SAT-SUN", *spans], jitter="30s")
    layered.next_after(NEW_YEAR)
    started = time.process_time()
    count, kept = missed_before(layered, NEW_YEAR, NEW_YEAR + YEAR, 100)
    assert time.process_time() - started < scaled(0.5)
    assert 350_000 < count < 353_000
    assert len(kept) == 100
