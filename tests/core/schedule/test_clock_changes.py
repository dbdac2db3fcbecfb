"""What clock changes do to jobs: Berlin and New York in 2027, and zones with other habits."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from supervisor.job.spec import JobSpec
from supervisor.operate.plans import clock_change_text
from supervisor.schedule.clock_changes import clock_changes, zone_changes

START = datetime(2027, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


def said(cron: str, zone: str, start: datetime = START) -> list[str]:
    spec = JobSpec(name="job", task="t", cron=cron, timezone=zone)
    return [clock_change_text(change) for change in clock_changes(spec, start, start + YEAR)]


SAID = [
    (
        "30 2 * * *",
        "Europe/Berlin",
        [
            "2027-03-28: 02:30 does not exist in Europe/Berlin, runs at 03:00",
            "2027-10-31: 02:30 comes twice in Europe/Berlin, runs the first time",
        ],
    ),
    (
        "*/20 2 * * *",
        "America/New_York",
        ["2027-03-14: 02:00, 02:20, 02:40 do not exist in America/New_York, one run at 03:00"],
    ),
    (
        "30 1 * * *",
        "America/New_York",
        ["2027-11-07: 01:30 comes twice in America/New_York, runs the first time"],
    ),
    # The run of 02:00 and that of 03:00 are one.
    (
        "0 2,3 * * *",
        "Europe/Berlin",
        [
            "2027-03-28: 02:00 does not exist in Europe/Berlin, no run of its own",
            "2027-10-31: 02:00 comes twice in Europe/Berlin, runs the first time",
        ],
    ),
    # Jobs of every hour keep their distance in real time.
    (
        "*/5 * * * *",
        "Europe/Berlin",
        [],  # it keeps its distance in real time
    ),
    # Half an hour, and at midnight.
    (
        "15 2 * * *",
        "Australia/Lord_Howe",
        ["2027-10-03: 02:15 does not exist in Australia/Lord_Howe, runs at 02:30"],
    ),
    (
        "30 0 * * *",
        "America/Santiago",
        ["2027-09-05: 00:30 does not exist in America/Santiago, runs at 01:00"],
    ),
    ("0 12 * * *", "Europe/Berlin", []),
    ("30 2 * * MON", "Europe/Berlin", []),
    ("30 2 * * *", "Asia/Tokyo", []),
    ("30 2 * * *", "UTC", []),
]


@pytest.mark.parametrize(("cron", "zone", "sentences"), SAID)
def test_times_that_a_clock_change_touches_are_named(
    cron: str, zone: str, sentences: list[str]
) -> None:
    assert said(cron, zone) == sentences


def test_a_day_that_a_zone_left_out_has_no_runs() -> None:
    assert said("0 9,18 * * *", "Pacific/Apia", datetime(2011, 12, 1, tzinfo=UTC))[0] == (
        "2011-12-30: 09:00, 18:00 do not exist in Pacific/Apia, no run of their own"
    )


def test_an_interval_knows_no_clock_changes() -> None:
    spec = JobSpec(name="job", task="t", every=timedelta(hours=1), timezone="Europe/Berlin")
    assert clock_changes(spec, START, START + YEAR) == []


def test_only_the_changes_of_the_given_time_count() -> None:
    spec = JobSpec(name="job", task="t", cron="30 2 * * *", timezone="Europe/Berlin")
    change = datetime(2027, 3, 28, 1, tzinfo=UTC)
    assert len(clock_changes(spec, START, change)) == 1
    assert clock_changes(spec, START, change - timedelta(seconds=1)) == []
    assert clock_changes(spec, change, change + timedelta(days=100)) == []


def test_clock_changes_are_found_to_the_second() -> None:
    changes = zone_changes("Europe/Berlin", date(2027, 1, 1), date(2027, 12, 31))
    assert [change.at for change in changes] == [
        datetime(2027, 3, 28, 1, tzinfo=UTC),
        datetime(2027, 10, 31, 1, tzinfo=UTC),
    ]
    assert [change.is_gap for change in changes] == [True, False]
