"""A job's durations over the days; no server, no clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.page_reads import Trace
from supervisor.web.job_charts import HEIGHT, durations_of

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def run(hours_ago: float, seconds: float, state: RunState = RunState.SUCCEEDED) -> Trace:
    at = NOON - HOUR * hours_ago
    has_begun = state not in (RunState.SKIPPED, RunState.MISSED)
    start = at if has_begun else None
    return Trace(f"job@{hours_ago}", state, at, start, at + timedelta(seconds=seconds), None, None)


def job(**keys: object) -> JobSpec:
    return JobSpec(**{"name": "job", "task": "proj.job", "every": "1h", **keys})  # type: ignore[arg-type]


def test_the_highest_point_is_the_longest_run() -> None:
    chart = durations_of(job(), [run(3, 30), run(2, 120), run(1, 60)], NOON, UTC)
    assert chart is not None
    heights = [HEIGHT - point.y for point in chart.points]
    assert heights == [pytest.approx(max(heights) * share, abs=0.2) for share in (0.25, 1, 0.5)]
    assert chart.words == "3 runs since 2026-03-08 09:00:00Z, the longest 2m"


def test_limits_near_the_runs_are_lines_and_others_are_named() -> None:
    limited = job(max_duration="150s", time_limit="2h")
    chart = durations_of(limited, [run(1, 120)], NOON, UTC)
    assert chart is not None
    assert [line.text for line in chart.limits] == ["max_duration 2m30s"]
    assert [*chart.beyond] == ["interval 1h", "time_limit 2h"]
    assert chart.limits[0].y < chart.points[0].y


def test_each_day_has_its_median_by_the_clocks_of_the_page() -> None:
    runs = [run(37, 10), run(36, 30), run(35, 20), run(1, 50)]
    chart = durations_of(job(), runs, NOON, UTC)
    assert chart is not None
    assert [line.text for line in chart.medians] == [
        "median 10s on Mar 06",
        "median 25s on Mar 07",
        "median 50s on Mar 08",
    ]


def test_runs_that_never_began_have_no_duration() -> None:
    assert durations_of(job(), [run(1, 0, RunState.SKIPPED)], NOON, UTC) is None
