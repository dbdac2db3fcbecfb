"""Overlaps and missed deadlines that a plan foresees from observed durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.job.durations import Durations
from supervisor.job.spec import JobSpec
from supervisor.operate.forecast import Forecast, foresee, round_up
from supervisor.operate.planning import plan_of
from supervisor.operate.plans import often, overlaps_text

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def observed(**runs: int) -> Durations:
    """``observed(s300=95, s900=5)``: so many runs that took so many seconds."""
    return Durations(tuple(float(name[1:]) for name, count in runs.items() for _ in range(count)))


def spec(**keys: Any) -> JobSpec:
    when = {} if "cron" in keys else {"every": "5m"}
    return JobSpec.model_validate({"name": "job", "task": "t", **when, **keys})


#: Each run takes 14 minutes, of ticks every 5.
THREE_INTERVALS = observed(s840=100)


def foreseen(durations: Durations, **keys: Any) -> Forecast:
    forecast = foresee(spec(**keys), durations, NOW)
    assert forecast
    return forecast


def told(job: JobSpec, durations: Durations) -> str:
    forecast = foresee(job, durations, NOW)
    assert forecast
    return overlaps_text(job, durations, forecast)


def test_without_runs_nothing_is_foreseen() -> None:
    assert foresee(spec(), observed(), NOW) is None
    [job] = plan_of({}, {"job": spec()}, {"job": observed()}, NOW).jobs
    assert job.durations is None


def test_runs_shorter_than_the_interval_are_no_trouble() -> None:
    assert foresee(spec(), observed(s300=100), NOW) is None


def test_what_befalls_few_ticks_is_not_foreseen() -> None:
    rarely = observed(s300=9990, s900=10)
    assert foresee(spec(cron="*/5 8 * * *"), rarely, NOW) is None
    assert foresee(spec(every="1m"), observed(s30=9990, s300=10), NOW)


def test_the_skips_foreseen_are_those_of_the_formula() -> None:
    # 5 of 100 runs last 14 minutes: each is in the way of two ticks.
    expected = 288 * 0.1 / 1.1
    assert foreseen(observed(s300=95, s840=5)).overlaps == pytest.approx(expected, rel=0.02)


def test_a_run_that_always_takes_three_intervals_skips_two_ticks_of_three() -> None:
    assert foreseen(THREE_INTERVALS).overlaps == pytest.approx(192, rel=0.01)


def test_the_ticks_of_a_cron_that_has_hours_are_those_of_an_average_day() -> None:
    forecast = foreseen(THREE_INTERVALS, cron="*/5 8-17 * * MON-FRI")
    assert forecast.distance == timedelta(minutes=5)
    assert forecast.overlaps == pytest.approx(120 * 5 / 7 * 2 / 3, rel=0.02)


def test_runs_side_by_side_overlap_only_beyond_their_number() -> None:
    assert foresee(spec(overlap="allow", max_running=3), THREE_INTERVALS, NOW) is None
    forecast = foreseen(THREE_INTERVALS, overlap="allow", max_running=2)
    assert forecast.overlaps == pytest.approx(288, rel=0.02)


TOLD = [
    ("skip", "runs take up to 14m, every 5m: about 26 skips a day; a safe interval is 14m"),
    ("queue_one", "runs take up to 14m, every 5m: about 29 waits a day; a safe interval is 14m"),
    (
        "replace",
        "runs take up to 14m, every 5m: about 29 replaced runs a day; a safe interval is 14m",
    ),
    ("allow", "runs take up to 14m, every 5m: about 29 overlaps a day; a safe interval is 14m"),
]


@pytest.mark.parametrize(("overlap", "sentence"), TOLD)
def test_each_policy_has_its_own_consequence(overlap: str, sentence: str) -> None:
    assert told(spec(overlap=overlap), observed(s300=95, s840=5)) == sentence


@pytest.mark.parametrize(
    ("seconds", "rounded"),
    [(0.4, 5), (41, 45), (60, 60), (372, 420), (3600, 3600), (3601, 4500), (25_000, 25_200)],
)
def test_a_safe_interval_is_a_round_one(seconds: float, rounded: int) -> None:
    assert round_up(timedelta(seconds=seconds)) == timedelta(seconds=rounded)


@pytest.mark.parametrize(
    ("a_day", "words"),
    [
        (14.2, "about 14 skips a day"),
        (1, "about 1 skip a day"),
        (0.5, "about 4 skips a week"),
        (0.05, "about 2 skips a month"),
        (0.003, "about 1 skip a year"),
        (0.0001, "less than one skip a year"),
    ],
)
def test_a_frequency_is_given_by_the_shortest_period_that_has_one(a_day: float, words: str) -> None:
    assert often(a_day, "skip") == words
