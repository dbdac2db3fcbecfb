"""Overlaps and missed deadlines that a plan foresees from observed durations."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.job.histogram import Histogram
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import BOUNDS
from supervisor.operate.forecast import Forecast, foresee, round_up
from supervisor.operate.planning import plan_of, violations
from supervisor.operate.plans import often, overlaps_text, plan_lines, plan_shape, violation_text
from supervisor.schedule.expectations import durations_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def observed(**buckets: int) -> Histogram:
    """``observed(s300=95, inf=5)``: so many attempts in the bucket up to that bound, each at it."""
    counts = [0] * (len(BOUNDS) + 1)
    for name, count in buckets.items():
        counts[len(BOUNDS) if name == "inf" else BOUNDS.index(float(name[1:]))] = count
    total = sum(n * bound for n, bound in zip(counts, (*BOUNDS, 20_000), strict=True))
    return Histogram(BOUNDS, tuple(counts), total)


def spec(**keys: Any) -> JobSpec:
    when = {} if "cron" in keys else {"every": "5m"}
    return JobSpec.model_validate({"name": "job", "task": "t", **when, **keys})


#: Each run takes 14 minutes, of ticks every 5.
THREE_INTERVALS = Histogram((839, 841), (0, 100, 0), 84_000)


def foreseen(histogram: Histogram, **keys: Any) -> Forecast:
    found = foresee(spec(**keys), {"job": histogram}, (), NOW)
    assert found
    return found


def told(job: JobSpec, histogram: Histogram) -> str:
    durations, found = durations_of(histogram), foresee(job, {"job": histogram}, (), NOW)
    assert durations
    assert found
    return overlaps_text(job, durations, found)


@pytest.mark.parametrize(
    ("histogram", "q", "seconds"),
    [
        (observed(s10=100), 0.5, 7.5),
        (observed(s10=100), 1, 10),
        (observed(s10=50, s60=50), 0.5, 10),
        (observed(s10=50, s60=50), 0.75, 45),
        (observed(s300=95, s900=5), 0.99, 780),
        (observed(**{"s0.1": 10}), 0.5, 0.05),
        (observed(s10=50, inf=50), 0.99, 14400),
    ],
)
def test_a_quantile_is_interpolated_within_its_bucket(
    histogram: Histogram, q: float, seconds: float
) -> None:
    assert histogram.quantile(q) == pytest.approx(seconds)


def test_without_observations_there_are_no_quantiles() -> None:
    assert observed().quantile(0.5) is None
    assert durations_of(observed()) is None
    assert foresee(spec(), {"job": observed()}, (), NOW) is None
    assert (observed().longest, observed(s10=1).longest) == (None, 10)
    assert observed(s1=1, inf=1).longest == math.inf


def test_runs_shorter_than_the_interval_are_no_trouble() -> None:
    assert foresee(spec(), {"job": observed(s300=100)}, (), NOW) is None


def test_what_befalls_few_ticks_is_not_foreseen() -> None:
    rarely = {"job": observed(s300=9990, s900=10)}
    assert foresee(spec(cron="*/5 8 * * *"), rarely, (), NOW) is None
    assert foresee(spec(every="1m"), {"job": observed(s30=9990, s300=10)}, (), NOW)


def test_the_skips_foreseen_are_those_of_the_formula() -> None:
    # 5 of 100 runs last between 5 and 15 minutes: 0.05 + 0.025 ticks are blocked for each start.
    expected = 288 * 0.075 / 1.075
    assert foreseen(observed(s300=95, s900=5)).overlaps == pytest.approx(expected, rel=0.02)


def test_a_run_that_always_takes_three_intervals_skips_two_ticks_of_three() -> None:
    assert foreseen(THREE_INTERVALS).overlaps == pytest.approx(192, rel=0.01)


def test_the_ticks_of_a_cron_that_has_hours_are_those_of_an_average_day() -> None:
    found = foreseen(THREE_INTERVALS, cron="*/5 8-17 * * MON-FRI")
    assert found.distance == timedelta(minutes=5)
    assert found.overlaps == pytest.approx(120 * 5 / 7 * 2 / 3, rel=0.02)


def test_runs_side_by_side_overlap_only_beyond_their_number() -> None:
    assert foresee(spec(overlap="allow", max_running=3), {"job": THREE_INTERVALS}, (), NOW) is None
    found = foreseen(THREE_INTERVALS, overlap="allow", max_running=2)
    assert found.overlaps == pytest.approx(288, rel=0.02)


def test_the_load_of_a_lock_is_that_of_all_jobs_which_share_it() -> None:
    jobs = {name: spec(name=name, serial="disk") for name in ("job", "other", "third")}
    minutes = dict.fromkeys(("job", "other"), observed(s300=10))
    found = plan_of({}, jobs, minutes, NOW)
    [job, _, third] = found.jobs
    assert job.forecast
    assert (job.forecast.overlaps, job.forecast.load) == (0, 2)
    assert job.forecast.shared_with == ("other", "third")
    assert third.forecast is None
    assert "job, other, third need 200% of the time of serial.disk" in "".join(plan_lines(found))


def test_jobs_with_other_locks_take_no_time_of_this_one() -> None:
    jobs = {name: spec(name=name, serial=name, overlap="queue_all") for name in ("job", "other")}
    minutes = dict.fromkeys(jobs, observed(s300=10))
    assert [job.forecast for job in plan_of({}, jobs, minutes, NOW).jobs] == [None, None]


def test_a_paused_job_takes_no_time_of_a_lock() -> None:
    jobs = {"job": spec(key="disk"), "other": spec(name="other", key="disk", paused=True)}
    minutes = dict.fromkeys(jobs, observed(s300=10))
    assert plan_of({}, jobs, minutes, NOW).jobs[0].forecast is None


TOLD = [
    ("skip", "p99 is 13m, every 5m: about 20 skips a day; a safe interval is 13m"),
    ("queue_one", "p99 is 13m, every 5m: about 21 waits a day; a safe interval is 13m"),
    ("replace", "p99 is 13m, every 5m: about 21 replaced runs a day; a safe interval is 13m"),
    ("allow", "p99 is 13m, every 5m: about 21 overlaps a day; a safe interval is 13m"),
]


@pytest.mark.parametrize(("overlap", "sentence"), TOLD)
def test_each_policy_has_its_own_consequence(overlap: str, sentence: str) -> None:
    assert told(spec(overlap=overlap), observed(s300=95, s900=5)) == sentence


def test_more_work_than_time_is_told_with_its_share() -> None:
    assert told(spec(overlap="queue_all"), observed(s900=10)) == (
        "p99 is 14m54s, every 5m: about 288 waits a day; job needs 300% of the time of its lock; "
        "a safe interval is 15m"
    )


def test_beyond_the_last_bucket_no_interval_is_called_safe() -> None:
    text = told(spec(every="1h", overlap="allow"), observed(inf=10))
    assert text == "p99 is over 4h, every 1h: about 24 overlaps a day"


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


# The usual duration against the deadlines that a job names.

SATURDAY = datetime(2027, 1, 9, 12, tzinfo=UTC)

#: From 5 to 15 minutes: p50 is 10m, p95 14m30s.
TEN_MINUTES = observed(s900=100)


def spec_of(**keys: Any) -> JobSpec:
    return JobSpec(name="nightly", task="t", timezone="Europe/Berlin", **keys)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"cron": "50 5 * * *"}, []),
        ({"cron": "50 5 * * *", "due_by": "07:00"}, []),
        (
            {"cron": "50 5 * * *", "due_by": "06:00"},
            ["usually up to 14m30s, and the run of 05:50 is due by 06:00 (`due_by`)"],
        ),
        # The last tick before the deadline is the one that has too little time.
        (
            {"every": "10m", "due_by": "06:00"},
            ["usually up to 14m30s, and the run of 05:50 is due by 06:00 (`due_by`)"],
        ),
        # A tick at the very time has a day.
        ({"cron": "0 6 * * *", "due_by": "06:00"}, []),
        (
            {"every": "1h", "due_by": "14m"},
            ["usually up to 14m30s, and the run of 14:00 is due by 14:14 (`due_by`)"],
        ),
        ({"every": "1h", "due_by": "15m"}, []),
        (
            {"every": "1h", "max_duration": "14m"},
            ["usually up to 14m30s, longer than `max_duration`, 14m"],
        ),
        ({"every": "1h", "max_duration": "30m", "min_duration": "1m"}, []),
        (
            {"every": "1h", "min_duration": "11m"},
            ["half of the runs take up to 10m, less than `min_duration`, 11m"],
        ),
    ],
)
def test_what_does_not_fit(keys: dict[str, Any], expected: list[str]) -> None:
    spec, durations = spec_of(**keys), durations_of(TEN_MINUTES)
    assert durations
    assert [
        violation_text(spec, found) for found in violations(spec, durations, SATURDAY)
    ] == expected


def test_a_schedule_that_ends_is_looked_at_to_its_end() -> None:
    spec = spec_of(at=["2027-01-09T20:00:00"], due_by="20:10")
    durations = durations_of(TEN_MINUTES)
    assert durations
    assert [found.key for found in violations(spec, durations, SATURDAY)] == ["due_by"]


def test_the_plan_says_so() -> None:
    wanted = {"nightly": spec_of(cron="50 5 * * *", due_by="06:00")}
    found = plan_of({}, wanted, {"nightly": TEN_MINUTES}, SATURDAY)
    (line,) = [line for line in plan_lines(found) if "deadline" in line]
    assert line.split(maxsplit=1)[1].startswith("usually up to 14m30s, and the run of 05:50")
    (shape,) = plan_shape(found)["jobs"][0]["deadlines"]
    assert (shape["tick"], shape["due_at"]) == (
        "2027-01-10T04:50:00.000Z",
        "2027-01-10T05:00:00.000Z",
    )
