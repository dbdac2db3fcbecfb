"""What the summary of a day counts, and its words."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from supervisor.errors import NotConfigured
from supervisor.features.notices.keys import Event
from supervisor.features.notices.rules import Notice, body, title
from supervisor.features.summary.rule import (
    Daily,
    Day,
    JobDay,
    PastRun,
    Summary,
    job_day,
    lines,
    slower,
    summary_of,
)
from supervisor.job.run import RunState
from supervisor.job.run_ids import tick_id

BERLIN = ZoneInfo("Europe/Berlin")
DAY = Day(date(2026, 3, 1), ZoneInfo("UTC"))
LATE_AFTER = timedelta(minutes=1)


def run(
    hours: float, *, delay: float = 0, seconds: float = 60, state: str = "succeeded", id: str = ""
) -> PastRun:
    """hours: from the beginning of the day to its nominal time. delay: in seconds."""
    nominal = DAY.start + timedelta(hours=hours)
    began = nominal + timedelta(seconds=delay)
    run_id = id or tick_id("nightly", nominal)
    return PastRun(run_id, nominal, RunState(state), nominal, began, seconds)


def judged(*runs: PastRun) -> JobDay:
    return job_day("nightly", runs, DAY, LATE_AFTER, is_whole=True)


@pytest.mark.parametrize(
    ("now", "day", "hours"),
    [
        (datetime(2026, 3, 2, 0, 5, tzinfo=UTC), date(2026, 3, 1), 24),
        # The last minute of a day is not over at midnight.
        (datetime(2026, 3, 1, 23, 0, 30, tzinfo=UTC), date(2026, 2, 28), 24),
        (datetime(2026, 3, 1, 23, 2, tzinfo=UTC), date(2026, 3, 1), 24),
        # Clocks in Berlin go from 02:00 to 03:00, and in autumn back.
        (datetime(2026, 3, 30, 8, 0, tzinfo=UTC), date(2026, 3, 29), 23),
        (datetime(2026, 10, 26, 8, 0, tzinfo=UTC), date(2026, 10, 25), 25),
    ],
)
def test_the_day_before_is_that_of_the_zone(now: datetime, day: date, hours: int) -> None:
    zone = ZoneInfo("UTC") if now.hour == 0 else BERLIN
    found = Day.before(now, zone)
    assert (found.date, (found.end - found.start) / timedelta(hours=1)) == (day, hours)


def test_runs_of_the_day_alone_are_counted() -> None:
    runs = [run(hours, state="failed") for hours in (-1, 0, 23.9)]
    assert judged(*runs).failed == 2


def test_a_tick_that_began_late_is_late_and_a_run_by_hand_is_not() -> None:
    late = run(1, delay=61), run(2, delay=59)
    by_hand = run(3, delay=7200, id="nightly@manual-1")
    assert judged(*late, by_hand).late == 1


@pytest.mark.parametrize(
    ("seconds", "before", "times"),
    [
        ([90.0], [60.0, 60.0, 60.0], 1.5),
        ([89.0], [60.0, 60.0, 60.0], None),
        ([90.0], [60.0, 60.0], None),
        ([], [60.0] * 9, None),
        # One slow run of many does not make the day slow; nor do parts of a second.
        ([60.0, 60.0, 600.0], [60.0] * 9, None),
        ([0.4], [0.1] * 9, None),
    ],
)
def test_a_job_is_slower_by_its_median(
    seconds: list[float], before: list[float], times: float | None
) -> None:
    assert slower(seconds, before) == times


def test_runs_that_failed_say_nothing_of_how_long_it_takes() -> None:
    runs = [run(-hours) for hours in (5, 4, 3, 2)]
    assert judged(*runs, run(1, seconds=600, state="timed_out")).slower is None
    assert judged(*runs, run(1, seconds=600)).slower == 10


def test_the_words_of_a_day() -> None:
    jobs = [
        JobDay("a", 2, 1, None, is_whole=True),
        JobDay("b", 1, 0, 2.04, is_whole=True),
        JobDay("c", 0, 0, 3.0, is_whole=False),
    ]
    summary = summary_of(DAY, {"failed": 1300, "skipped": 14}, jobs)
    before = summary_of(DAY.day_before, {}, [])
    assert [*lines(summary, before)] == [
        "Sun 2026-03-01: 1,300 failed, 1 late, 2 slower than usual, 14 skipped",
        "The day before: nothing went wrong",
        "Most failures: a (2), b (1)",
        "Slower than usual: c (3 times), b (2 times)",
        "Not known: late and slow runs at the beginning of the day"
        " (1 of 3 jobs ran more often than their history keeps)",
        "Days of UTC",
    ]
    assert [*lines(before, None)][1] == "The day before is not known"
    assert Summary.model_validate_json(summary.model_dump_json()) == summary


def test_the_notice_has_the_counts_as_its_title() -> None:
    text = "Sun 2026-03-01: 3 failed\nThe day before: 2 failed"
    at = DAY.end
    link = "https://jobs.example/"
    notice = Notice("k", "i", Event.DAILY, "", (), 0, at, at, reason=text, link=link)
    assert title(notice) == "Sun 2026-03-01: 3 failed"
    assert body(notice) == f"The day before: 2 failed\n{link}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Daily(ZoneInfo("UTC"))),
        ("07:00", Daily(ZoneInfo("UTC"), time(7))),
        ("7:30 Europe/Berlin", Daily(BERLIN, time(7, 30))),
    ],
)
def test_a_time_of_the_day_and_its_zone(text: str, expected: Daily) -> None:
    assert Daily.of("SUPERVISOR_NOTIFY_DAILY", text) == expected


@pytest.mark.parametrize("text", ["soon", "25:00", "07:00 Berlin", "07:00 ../x", "7"])
def test_what_is_no_time_of_a_day_is_refused(text: str) -> None:
    with pytest.raises(NotConfigured, match=r"SUPERVISOR_NOTIFY_DAILY: .*07:00 Europe/Berlin"):
        Daily.of("SUPERVISOR_NOTIFY_DAILY", text)


def test_a_time_that_the_clock_jumps_over_is_the_end_of_the_jump() -> None:
    day = Day(date(2026, 3, 28), BERLIN)
    assert day.at(time(2, 30)) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
