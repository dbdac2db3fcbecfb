"""How late a start may be, how long a run, and by when a success is due: tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.job.durations import Durations
from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import NO_RUNS
from supervisor.schedule.expectations import (
    interval_of,
    late_after,
    next_ticks,
    retry_waits,
    running_limit,
    usual_duration,
    work_until_success,
)
from supervisor.times import ms_of
from supervisor.web.metrics_scrape import Intervals, ScrapedJob, job_of

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def spec_of(**keys: Any) -> JobSpec:
    schedule = {} if {"cron", "at", "every"} & keys.keys() else {"every": "1h"}
    return JobSpec(**{"name": "nightly", "task": "proj.nightly", **schedule, **keys})


def observed(*seconds: float) -> Durations:
    return Durations(tuple(sorted(seconds)))


@pytest.mark.parametrize(
    ("keys", "interval"),
    [
        ({"every": "90s"}, timedelta(seconds=90)),
        ({"cron": "0 2 * * *"}, timedelta(days=1)),
        ({"cron": "0,10 2 * * *"}, timedelta(minutes=10)),
        ({"at": ["2026-04-01T00:00:00"]}, None),
    ],
)
def test_the_interval_is_the_shortest_of_the_next_ones(
    keys: dict[str, Any], interval: timedelta | None
) -> None:
    assert interval_of(next_ticks(spec_of(**keys), NOON)) == interval


@pytest.mark.parametrize(
    ("keys", "interval", "late"),
    [
        ({}, timedelta(seconds=10), timedelta(seconds=30)),
        ({}, HOUR, timedelta(minutes=6)),
        ({}, timedelta(days=1), timedelta(minutes=15)),
        ({}, None, timedelta(minutes=15)),
        ({"start_deadline": "2m"}, timedelta(days=1), timedelta(minutes=2)),
        ({"overlap": "queue_one"}, HOUR, timedelta(minutes=6) + HOUR),
        ({"serial": True}, HOUR, timedelta(minutes=6) + HOUR),
        ({"overlap": "requeue"}, HOUR, timedelta(minutes=7) + HOUR),
    ],
)
def test_a_start_is_late_by_its_interval_deadline_and_policy(
    keys: dict[str, Any], interval: timedelta | None, late: timedelta
) -> None:
    assert late_after(spec_of(**keys), interval, usual=HOUR) == late


@pytest.mark.parametrize(
    ("keys", "durations", "interval", "usual"),
    [
        ({}, observed(), None, HOUR),
        ({}, observed(), MINUTE, MINUTE),
        ({}, observed(45), MINUTE, timedelta(seconds=45)),
        ({"time_limit": "5m"}, observed(45), MINUTE, 5 * MINUTE),
        ({"time_limit": "5m"}, observed(*[2.0] * 5), MINUTE, timedelta(seconds=2)),
        ({"time_limit": "5m"}, observed(*[2.0] * 4), MINUTE, 5 * MINUTE),
        ({}, observed(99_999), None, timedelta(seconds=99_999)),
    ],
)
def test_the_usual_duration_is_observed_or_else_assumed(
    keys: dict[str, Any], durations: Durations, interval: timedelta | None, usual: timedelta
) -> None:
    assert usual_duration(spec_of(**keys), durations, interval) == usual


@pytest.mark.parametrize(
    ("keys", "durations", "limit"),
    [
        ({}, observed(*[2.0] * 4), None),
        ({}, observed(*[0.3] * 1000), MINUTE),
        ({}, observed(*[2.0] * 10), MINUTE),
        ({}, observed(*[20.0] * 10), timedelta(seconds=80)),
        ({"time_limit": "5m", "stop_grace": "10s"}, observed(*[2.0] * 10), timedelta(seconds=310)),
        # Who names how long a run may take is not compared with what is usual.
        ({"max_duration": "5m"}, observed(*[20.0] * 10), None),
        ({"max_duration": "4m", "time_limit": "5m"}, observed(), timedelta(seconds=310)),
    ],
)
def test_the_running_limit_follows_from_limits_and_usual_durations(
    keys: dict[str, Any], durations: Durations, limit: timedelta | None
) -> None:
    assert running_limit(spec_of(**keys), durations) == limit


def test_of_several_steps_no_time_limit_is_that_of_the_run() -> None:
    steps = spec_of(task=None, time_limit="5m", steps=[{"task": "proj.a", "priority": 1}])
    assert running_limit(steps, observed()) is None
    assert work_until_success(steps, MINUTE) == MINUTE


@pytest.mark.parametrize(
    ("keys", "seconds"),
    [
        ({}, 0),
        ({"max_retries": 3, "retry_backoff": "10s"}, 10 + 20 + 40),
        ({"max_retries": 4, "retry_backoff": "10s", "retry_backoff_max": "25s"}, 10 + 20 + 25 + 25),
        ({"max_retries": 1_000_000, "retry_backoff": "0s"}, 0),
    ],
)
def test_the_waits_between_retries_add_up(keys: dict[str, Any], seconds: int) -> None:
    assert retry_waits(spec_of(**keys)) == timedelta(seconds=seconds)


def test_no_number_of_retries_is_too_large() -> None:
    patient = spec_of(max_retries=1_000_000, retry_backoff="30d", retry_backoff_max="365d")
    assert work_until_success(patient, HOUR) == timedelta(days=366)


def found(spec: JobSpec, now: datetime, **fields: datetime | int) -> ScrapedJob:
    """As a scrape at this time finds a job of which nothing but these fields is known."""
    texts = {
        field: str(ms_of(value) if isinstance(value, datetime) else value)
        for field, value in fields.items()
    }
    return job_of(spec, texts, NO_RUNS, Durations(), Intervals().of(spec, now))


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ({"loaded": NOON - HOUR / 2}, NOON),
        ({"loaded": NOON - HOUR / 2, "last_success": NOON + MINUTE}, NOON + HOUR),
        ({"loaded": NOON, "last_success": NOON - 5 * HOUR}, NOON + HOUR),
        ({"loaded": NOON - 9 * HOUR, "pause_to": NOON + MINUTE}, NOON + HOUR),
        ({}, None),
    ],
)
def test_a_success_is_due_of_the_next_tick(
    fields: dict[str, datetime], due: datetime | None
) -> None:
    spec = spec_of(time_limit="5m")
    by = found(spec, NOON, **fields).success_by
    # Late after six minutes, five of work, and a minute.
    assert by == (due and due + timedelta(minutes=6 + 5 + 1))


def test_of_a_paused_job_nothing_is_expected() -> None:
    since = {"loaded": NOON - HOUR}
    assert found(spec_of(), NOON, **since, paused=1).success_by is None
    by = found(spec_of(), NOON, **since, paused=0).success_by
    assert by is not None
    assert by > NOON + HOUR


def test_of_the_last_tick_a_success_is_expected_and_then_nothing() -> None:
    once = spec_of(at=["2026-03-02T11:00:00"])
    since = {"loaded": NOON - 2 * HOUR}
    assert found(once, NOON, **since).success_by is not None
    done = found(once, NOON, **since, last_success=NOON - HOUR / 2)
    assert done.success_by is None


@pytest.mark.parametrize("keys", [{}, {"due_by": "1d"}, {"due_by": "06:00"}])
def test_beyond_the_calendar_nothing_is_expected(keys: dict[str, str]) -> None:
    last = spec_of(at=["9999-12-31T23:59:00"], **keys)
    job = found(last, NOON, loaded=NOON)
    assert (job.success_by, job.record.success_due_at) == (None, None)


def test_what_a_job_names_is_expected_beside_what_is_usual() -> None:
    spec = spec_of(due_by="45m")
    began = {"last_success": NOON + HOUR, "last_success_start": NOON + HOUR}
    job = found(spec, NOON, loaded=NOON, **began)
    assert job.record.success_due_at == NOON + 2 * HOUR + 45 * MINUTE
    began = {"last_success": NOON + 3 * HOUR, "last_success_start": NOON + MINUTE}
    job = found(spec, NOON, loaded=NOON, **began)
    assert job.record.success_due_at == NOON + HOUR + 45 * MINUTE
    assert found(spec, NOON, loaded=NOON, paused=1).record.success_due_at is None


def test_an_interval_is_looked_up_again_when_its_ticks_have_passed() -> None:
    spec = spec_of(cron="*/10 12 * * *")
    intervals = Intervals()
    first = intervals.of(spec, NOON)
    later = intervals.of(spec, NOON + timedelta(days=3))
    assert first == later == timedelta(minutes=10)
    assert intervals.of(spec_of(every="1m"), NOON) == MINUTE
    assert intervals.of(spec_of(cron="0,20 13 * * *"), NOON + HOUR) == 20 * MINUTE
    changing = spec_of(at=["2026-03-02T13:00:00", "2026-03-02T13:05:00", "2026-03-03T00:00:00"])
    assert intervals.of(changing, NOON) == 5 * MINUTE
    assert intervals.of(changing, NOON + timedelta(days=2)) is None
