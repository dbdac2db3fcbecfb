"""Which ticks are emitted, caught up or missed: a function of the watermark and the time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of
from supervisor.schedule.emission import BATCH, Emission, closed, emission
from supervisor.schedule.ticks import PausePeriod

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def emitted(ago: str | timedelta, **keys: object) -> Emission:
    """What is emitted at noon for a job that was last looked at `ago`."""
    spec = JobSpec.model_validate({"name": "job", "task": "t", "every": "1m", **keys})
    return emission(spec, schedule_of(spec), NOON - ago, NOON)  # type: ignore[operator]


def times(emission: Emission) -> list[str]:
    return [f"{tick.nominal_at:%H:%M:%S}" for tick in emission.ticks]


def missed(emission: Emission) -> list[tuple[str, int, str, str]]:
    return [
        (p.reason, p.ticks, f"{p.first_at:%H:%M:%S}", f"{p.last_at:%H:%M:%S}")
        for p in emission.passed
    ]


def test_a_tick_is_due_at_its_nominal_time_and_the_next_one_follows() -> None:
    result = emitted(timedelta(minutes=1))
    assert (times(result), missed(result)) == (["12:00:00"], [])
    assert result.next_at == NOON + timedelta(minutes=1)


def test_nothing_is_due_right_after_a_tick() -> None:
    result = emitted(timedelta())
    assert (result.ticks, result.passed) == ((), ())
    assert result.next_at == NOON + timedelta(minutes=1)


@pytest.mark.parametrize("catchup", ["none", "latest", "all"])
def test_ticks_of_the_last_seconds_are_late_and_not_missed(catchup: str) -> None:
    result = emitted(timedelta(seconds=14), every="5s", catchup=catchup)
    assert (times(result), missed(result)) == (["11:59:50", "11:59:55", "12:00:00"], [])


OUTAGES = [
    # catchup, every, emitted, missed
    ("none", "1m", ["12:00:00"], [("catchup", 10, "11:50:00", "11:59:00")]),
    ("latest", "1m", ["12:00:00"], [("catchup", 10, "11:50:00", "11:59:00")]),
    ("latest", "11m", ["11:53:00"], []),
    ("none", "11m", [], [("catchup", 1, "11:53:00", "11:53:00")]),
    ("all", "3m", ["11:51:00", "11:54:00", "11:57:00", "12:00:00"], []),
]


@pytest.mark.parametrize(("catchup", "every", "runs", "passed"), OUTAGES)
def test_ticks_of_an_outage_are_caught_up_as_the_job_says(
    catchup: str, every: str, runs: list[str], passed: list[tuple[str, int, str, str]]
) -> None:
    result = emitted(timedelta(minutes=10, seconds=30), every=every, catchup=catchup)
    assert (times(result), missed(result)) == (runs, passed)


def test_ticks_outside_the_window_are_missed_also_when_all_are_caught_up() -> None:
    result = emitted(timedelta(minutes=10, seconds=30), catchup="all", catchup_window="2m")
    assert times(result) == ["11:59:00", "12:00:00"]
    assert missed(result) == [("window", 9, "11:50:00", "11:58:00")]


def test_the_latest_tick_of_a_long_outage_runs_if_inside_the_window() -> None:
    result = emitted(timedelta(hours=30), every="24h", catchup_window="13h")
    assert times(result) == [f"{NOON - timedelta(hours=12):%H:%M:%S}"]
    assert emitted(timedelta(hours=30), every="24h", catchup_window="11h").ticks == ()


def test_a_year_of_minutes_is_accounted_for_in_one_pass() -> None:
    result = emitted(timedelta(days=365))
    counted = len(result.ticks) + sum(p.ticks for p in result.passed)
    assert counted == 365 * 24 * 60
    assert times(result) == ["12:00:00"]


def test_a_backlog_is_emitted_in_batches_that_miss_nothing() -> None:
    watermark, runs = NOON - timedelta(minutes=350), []
    spec = JobSpec(
        name="job",
        task="t",
        every=timedelta(minutes=1),
        catchup="all",  # type: ignore[arg-type]
        catchup_window=timedelta(days=1),
    )
    while True:
        result = emission(spec, schedule_of(spec), watermark, NOON)
        if not result.ticks:
            break
        assert len(result.ticks) <= BATCH
        runs += [tick.nominal_at for tick in result.ticks]
        watermark = runs[-1]
    assert runs == [NOON - timedelta(minutes=n) for n in range(349, -1, -1)]


PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "time.md"


@pytest.mark.parametrize("catchup", ["none", "latest", "all"])
def test_ten_hours_without_beat_come_to_what_the_page_says(catchup: str) -> None:
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    spec = JobSpec.model_validate(
        {"name": "j", "task": "t", "every": "1h", "catchup": catchup, "catchup_window": "6h"}
    )
    result = emission(spec, schedule_of(spec), at - timedelta(hours=10), at)
    [row] = re.findall(rf"^\| `{catchup}` \| (.*) \| (.*) \|$", PAGE.read_text(), re.M)
    runs, passed = (re.findall(r"\d\d:\d\d", cell) for cell in row)
    emitted_at = [f"{tick.nominal_at:%H:%M}" for tick in result.ticks]
    assert runs == sorted({*emitted_at[:1], *emitted_at[-1:]})
    assert passed == [f"{t:%H:%M}" for p in result.passed for t in (p.first_at, p.last_at)]
    assert re.findall(r"window|catchup", row[1]) == [p.reason for p in result.passed]
    assert len(result.ticks) + sum(p.ticks for p in result.passed) == 10


def pieces(
    spec: JobSpec, watermark: datetime, pause: PausePeriod
) -> list[tuple[list[str], list[str]]]:
    """What beat does at noon, look by look, until nothing is due: runs, and what is passed over."""
    seen = []
    while True:
        part = emission(spec, schedule_of(spec), watermark, NOON, pause)
        if not part.ticks and not part.passed:
            return seen
        passed = [f"{p.state} {p.first_at:%H:%M}-{p.last_at:%H:%M}" for p in part.passed]
        seen.append((times(part), passed))
        watermark = max(
            t
            for t in (*(p.last_at for p in part.passed), *(tick.nominal_at for tick in part.ticks))
        )


def test_ticks_of_a_pause_are_excluded_when_beat_was_away_too() -> None:
    spec = JobSpec.model_validate(
        {"name": "j", "task": "t", "every": "1h", "catchup": "all", "catchup_window": "1d"}
    )
    early = NOON - timedelta(hours=6)
    pause = PausePeriod(
        NOON - timedelta(hours=4, minutes=30), NOON - timedelta(hours=1, minutes=30)
    )
    assert pieces(spec, early, pause) == [
        (["07:00:00"], []),
        ([], ["excluded 08:00-10:00"]),
        (["11:00:00", "12:00:00"], []),
    ]
    goes_on = PausePeriod(pause.start, None)
    assert pieces(spec, early, goes_on) == [([], ["excluded 07:00-12:00"])]


@pytest.mark.parametrize(
    ("starts", "ends", "runs", "passed"),
    [
        (0, None, [], ["excluded 10:00-12:00"]),
        (1, None, ["10:00:00", "11:00:00", "12:00:00"], []),  # at one o'clock
        (-2, 0, ["12:00:00"], ["excluded 10:00-11:00"]),
        (-2, 1, [], ["excluded 10:00-12:00"]),
    ],
)
def test_a_pause_is_from_its_start_to_before_its_end(
    starts: int, ends: int | None, runs: list[str], passed: list[str]
) -> None:
    spec = JobSpec.model_validate(
        {"name": "j", "task": "t", "every": "1h", "catchup": "all", "catchup_window": "1d"}
    )
    end = None if ends is None else NOON + timedelta(hours=ends)
    found = pieces(
        spec, NOON - timedelta(hours=3), PausePeriod(NOON + timedelta(hours=starts), end)
    )
    assert [tick for ticks, _ in found for tick in ticks] == runs
    assert [row for _, rows in found for row in rows] == passed


@pytest.mark.parametrize(
    ("starts", "ends", "passed"),
    [
        (-4, -2, ["missed 07:00-07:00", "excluded 08:00-09:00", "missed 10:00-11:00"]),
        (-4, 0, ["missed 07:00-07:00", "excluded 08:00-11:00"]),
        (-4, None, ["excluded 07:00-11:00"]),
        (0, None, ["excluded 07:00-11:00"]),
        (1, None, ["missed 07:00-11:00"]),  # at one o'clock
        (-8, -6, ["missed 07:00-11:00"]),
    ],
)
def test_ticks_of_a_schedule_that_ends_are_missed_or_excluded_by_a_pause(
    starts: int, ends: int | None, passed: list[str]
) -> None:
    spec = JobSpec.model_validate({"name": "j", "task": "t", "every": "1h"})
    end = None if ends is None else NOON + timedelta(hours=ends)
    pause = PausePeriod(NOON + timedelta(hours=starts), end)
    watermark, until = NOON - timedelta(hours=6), NOON - timedelta(seconds=15)
    parts = closed(spec, schedule_of(spec), watermark, until, NOON, pause)
    assert [f"{p.state} {p.first_at:%H:%M}-{p.last_at:%H:%M}" for p in parts] == passed


@pytest.mark.parametrize("catchup", ["none", "all"])
def test_what_was_due_before_a_pause_is_as_old_as_it_is(catchup: str) -> None:
    """Beat was away for eight hours; six hours ago the job was paused, for five hours."""
    keys = {"name": "job", "task": "t", "every": "1h", "catchup": catchup}
    spec = JobSpec.model_validate({**keys, "catchup_window": "1h"})
    paused = PausePeriod(NOON - timedelta(hours=6), NOON - timedelta(hours=1))
    result = emission(spec, schedule_of(spec), NOON - timedelta(hours=8), NOON, paused)
    assert (times(result), missed(result)) == ([], [("window", 1, "05:00:00", "05:00:00")])
    assert result.next_at == NOON - timedelta(hours=6)


def test_beat_looks_again_for_the_first_tick_that_a_batch_leaves() -> None:
    keys = {"name": "j", "task": "t", "every": "1s", "catchup": "all", "catchup_window": "1d"}
    spec = JobSpec.model_validate(keys)
    for ticks in (BATCH, BATCH + 1):
        result = emission(spec, schedule_of(spec), NOON - timedelta(seconds=ticks), NOON)
        assert len(result.ticks) == BATCH
        assert result.next_at == result.ticks[-1].nominal_at + timedelta(seconds=1)
