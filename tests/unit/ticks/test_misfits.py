"""The usual duration against the deadlines that a job names, before it is loaded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor.job.spec import JobSpec
from supervisor.operate.tables import misfit_text, plan_lines, plan_shape
from supervisor.ticks.plan import durations_of, misfits, plan_of
from tests.unit.operate.test_foresight import observed

NOW = datetime(2027, 1, 9, 12, tzinfo=UTC)

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
    assert [misfit_text(spec, found) for found in misfits(spec, durations, NOW)] == expected


def test_a_schedule_that_ends_is_looked_at_to_its_end() -> None:
    spec = spec_of(at=["2027-01-09T20:00:00"], due_by="20:10")
    durations = durations_of(TEN_MINUTES)
    assert durations
    assert [found.key for found in misfits(spec, durations, NOW)] == ["due_by"]


def test_the_plan_says_so() -> None:
    wanted = {"nightly": spec_of(cron="50 5 * * *", due_by="06:00")}
    found = plan_of({}, wanted, {"nightly": TEN_MINUTES}, NOW)
    (line,) = [line for line in plan_lines(found) if "deadline" in line]
    assert line.split(maxsplit=1)[1].startswith("usually up to 14m30s, and the run of 05:50")
    (shape,) = plan_shape(found)["jobs"][0]["deadlines"]
    assert (shape["tick"], shape["due_at"]) == (
        "2027-01-10T04:50:00.000Z",
        "2027-01-10T05:00:00.000Z",
    )
