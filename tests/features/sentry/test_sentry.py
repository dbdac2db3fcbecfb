"""What Sentry Crons is told to expect of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from supervisor.features.sentry.step import CheckIns, monitor_config, monitor_schedule
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from tests.logged import capture_logs

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "task": "t", **keys})


def interval(value: int, unit: str) -> dict[str, Any]:
    return {"type": "interval", "value": value, "unit": unit}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"cron": "0 9 * * MON-FRI"}, {"type": "crontab", "value": "0 9 * * MON-FRI"}),
        ({"cron": "@Daily"}, {"type": "crontab", "value": "0 0 * * *"}),
        ({"every": "2d"}, interval(2, "day")),
        ({"every": "90m"}, interval(90, "minute")),
        ({"every": "3h", "phase": "1h"}, interval(3, "hour")),
        ({"every": "90s"}, None),
        ({"every": "30s"}, None),
        ({"cron": ["0 9 * * *", "0 12 * * *"]}, None),
        ({"rrule": "FREQ=DAILY"}, None),
        ({"at": ["2026-12-24T18:00:00"]}, None),
        ({"every": "1h", "exclude": ["SAT"]}, None),
        ({"every": "1h", "end_at": "2027-01-01T00:00:00"}, None),
        ({}, None),
    ],
)
def test_a_schedule_is_told_if_sentry_can_express_it(
    keys: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    assert monitor_schedule(job(**keys)) == expected


@pytest.mark.parametrize(
    ("keys", "margin"),
    [
        ({"every": "1m"}, 1),
        ({"every": "1h"}, 6),
        ({"every": "1d"}, 15),
        ({"every": "1d", "start_deadline": "5m"}, 5),
        ({"every": "1d", "jitter": "1h"}, 75),
        ({"every": "1d", "overlap": "queue_one", "time_limit": "2h"}, 135),
        ({"every": "1d", "after": ["other"], "max_wait": "90d"}, 40_320),
    ],
)
def test_the_margin_is_when_a_start_is_late(keys: dict[str, Any], margin: int) -> None:
    config = monitor_config(job(timezone="Europe/Berlin", **keys), NOW)
    assert config is not None
    assert (config["checkin_margin"], config["timezone"]) == (margin, "Europe/Berlin")


@pytest.mark.parametrize(
    ("keys", "runtime"),
    [
        ({}, None),
        ({"time_limit": "10m"}, 10),
        ({"time_limit": "10m", "max_duration": "90s"}, 2),
        ({"soft_time_limit": "10m", "max_retries": 2, "retry_backoff": "1m"}, 33),
    ],
)
def test_the_runtime_has_place_for_all_attempts(keys: dict[str, Any], runtime: int | None) -> None:
    config = monitor_config(job(every="1h", **keys), NOW)
    assert config is not None
    assert config.get("max_runtime") == runtime


@pytest.mark.parametrize("slug", ["Nightly", "a b", "12", "", "x" * 51])
def test_a_slug_is_one_that_sentry_takes(slug: str) -> None:
    with pytest.raises(ValidationError):
        job(sentry_monitor=slug)


def test_runs_of_a_job_with_a_monitor_are_written_down() -> None:
    given = {None: "", False: "", True: "check_in", "tidy": "check_in"}
    assert {key: job(sentry_monitor=key).rules().ping for key in given} == given


def test_without_the_sdk_no_run_is_written_down(ledger: Ledger) -> None:
    check_ins = CheckIns(ledger, "app")
    silent, said = job(every="1h"), job(every="1h", sentry_monitor=True)
    assert check_ins.monitored(silent) is silent
    with capture_logs() as lines:
        admitted = check_ins.monitored(said)
        assert check_ins.monitored(said) is admitted
    assert [line["event"] for line in lines] == ["check-ins disabled"]
    assert not admitted.rules().ping
