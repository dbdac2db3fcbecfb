"""`due_by`, `max_duration` and `min_duration`: what the ledger keeps, the metrics and the API."""

from __future__ import annotations

from datetime import timedelta

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.operate import shapes
from supervisor.operate.words import state_words
from supervisor.schedule.deadlines import due_at
from supervisor.testing import has_run_for, lease_runs_out
from supervisor.web.metrics import Metrics
from tests.jobs import at_work, begin, job, reload, run_id, ticks
from tests.tools.web.test_metrics import samples, text_of
from tests.waiting import clear_of

OVER = ("supervisor_runs_over_max_duration_total",)
UNDER = ("supervisor_runs_under_min_duration_total",)
DUE = ("supervisor_success_due_timestamp_seconds",)


def took(
    ledger: Ledger,
    spec: JobSpec,
    seconds: int,
    outcome: RunState = RunState.SUCCEEDED,
    second: int = 0,
) -> None:
    """A run of the job was at work for so long, and ended."""
    at_work(ledger, spec, second)
    has_run_for(ledger, run_id(spec, second), timedelta(seconds=seconds))
    ledger.finish(run_id(spec, second), "token", outcome)


@pytest.mark.parametrize(
    ("outcome", "seconds", "over", "under"),
    [
        (RunState.SUCCEEDED, 100, 1, 0),
        (RunState.FAILED, 100, 1, 0),
        (RunState.TIMED_OUT, 100, 1, 0),
        (RunState.CANCELLED, 100, 1, 0),
        # Nobody knows when a lost one ended.
        (RunState.LOST, 100, 0, 0),
        (RunState.SUCCEEDED, 30, 0, 0),
        (RunState.SUCCEEDED, 0, 0, 1),
        # What failed at once is not reported beside that.
        (RunState.FAILED, 0, 0, 0),
    ],
)
def test_a_run_out_of_its_bounds_is_counted(
    ledger: Ledger, outcome: RunState, seconds: int, over: int, under: int
) -> None:
    spec = job(ledger, max_duration="1m", min_duration="20s", on_crash="fail")
    took(ledger, spec, seconds, outcome)
    values = samples(ledger)
    assert (values[OVER], values[UNDER]) == (over, under)
    fault = "max_duration" if over else "min_duration" if under else None
    assert shapes.Run.dumped(ledger.run(run_id(spec, 0)))["duration_fault"] == fault


def test_a_report_that_comes_twice_counts_once(ledger: Ledger) -> None:
    spec = job(ledger, max_duration="1m")
    took(ledger, spec, 100)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert samples(ledger)[OVER] == 1


def test_a_run_whose_attempts_all_took_too_long_counts_once(ledger: Ledger) -> None:
    spec = job(ledger, max_duration="1m", max_retries=3)
    at_work(ledger, spec, 0)
    has_run_for(ledger, run_id(spec, 0), timedelta(seconds=100))
    ledger.retry(run_id(spec, 0), "token", timedelta(), "first")
    assert samples(ledger)[OVER] == 1
    ledger.rescue()
    begin(ledger, run_id(spec, 0), "second")
    has_run_for(ledger, run_id(spec, 0), timedelta(seconds=100))
    ledger.finish(run_id(spec, 0), "second", RunState.SUCCEEDED)
    assert samples(ledger)[OVER] == 1


def test_a_run_keeps_the_bounds_that_it_was_admitted_with(ledger: Ledger) -> None:
    spec = job(ledger)
    at_work(ledger, spec, 0)
    job(ledger, max_duration="1m")
    has_run_for(ledger, run_id(spec, 0), timedelta(seconds=100))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert samples(ledger)[OVER] == 0


def test_only_jobs_with_the_keys_have_the_series(ledger: Ledger) -> None:
    job(ledger)
    assert not {OVER, UNDER, DUE} & samples(ledger).keys()
    assert "supervisor_job_max_duration_seconds{" not in text_of(Metrics(ledger))


def due_of(ledger: Ledger) -> float | None:
    """The metric, and that the job's record says the same."""
    values = samples(ledger).get(DUE)
    shown = ledger.job("nightly").success_due_at
    assert values == (shown.timestamp() if shown else None)
    assert (shapes.Job.dumped(ledger.job("nightly"))["success_due_at"] is None) == (values is None)
    return values


@pytest.fixture(autouse=True)
def hour() -> None:
    """It is the same when a test begins and when it ends."""
    clear_of(3_600, 20)


def tick_after(spec: JobSpec, ledger: Ledger, ago: timedelta) -> float:
    """The deadline of the first tick of an hourly job after that long ago, in seconds."""
    hour = timedelta(hours=1)
    at = ledger.now() - ago
    tick = at.replace(minute=0, second=0, microsecond=0) + hour
    due = due_at(spec, tick)
    assert due
    return due.timestamp()


def test_a_job_is_due_from_its_loading_then_from_a_successs_start(ledger: Ledger) -> None:
    spec, loaded = job(ledger, every="1h", due_by="45m"), timedelta(hours=10)
    ledger.admit(ticks(spec, 0))
    reload(ledger, spec, ledger.now() - loaded)
    assert due_of(ledger) == tick_after(spec, ledger, loaded)
    at_work(ledger, spec, 0)
    has_run_for(ledger, run_id(spec, 0), timedelta(hours=3))
    assert due_of(ledger) == tick_after(spec, ledger, loaded), "a run at work is no success"
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert due_of(ledger) == tick_after(spec, ledger, timedelta(hours=3))


def test_what_failed_is_still_due(ledger: Ledger) -> None:
    spec = job(ledger, every="1h", due_by="45m")
    ledger.admit(ticks(spec, 0))
    reload(ledger, spec, ledger.now() - timedelta(hours=1))
    before = due_of(ledger)
    took(ledger, spec, 0, RunState.FAILED)
    assert due_of(ledger) == before is not None


def test_of_runs_beside_each_other_the_latest_to_begin_counts(ledger: Ledger) -> None:
    spec = job(ledger, every="1h", due_by="45m", overlap="allow")
    for second, hours in enumerate((5, 2)):
        at_work(ledger, spec, second)
        has_run_for(ledger, run_id(spec, second), timedelta(hours=hours))
    for second in (1, 0):
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)
    assert due_of(ledger) == tick_after(spec, ledger, timedelta(hours=2))


def test_nothing_is_due_in_a_pause_nor_what_the_pause_left_out(ledger: Ledger) -> None:
    spec = job(ledger, every="1h", due_by="45m", since=ledger.now() - timedelta(hours=10))
    ledger.pause("nightly")
    assert due_of(ledger) is None
    ledger.resume("nightly")
    assert due_of(ledger) == tick_after(spec, ledger, timedelta())


def test_a_list_of_jobs_names_those_that_are_overdue(ledger: Ledger) -> None:
    job(ledger, every="1h", due_by="45m", since=ledger.now() - timedelta(hours=10))
    record = ledger.job("nightly")
    due = record.success_due_at
    assert due
    assert state_words(record, due) == "idle"
    assert state_words(record, due + timedelta(minutes=4)) == "idle (overdue by 4m)"


def test_of_several_steps_the_whole_run_counts_and_no_step(ledger: Ledger) -> None:
    steps = ({"task": "proj.extract", "priority": 2}, {"task": "proj.load", "priority": 1})
    spec = job(ledger, task=None, steps=steps, every="1h", due_by="45m", max_duration="1m")
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    begin(ledger, f"{run}~extract")
    for worked in (f"{run}~extract", run):
        has_run_for(ledger, worked, timedelta(hours=3))
    ledger.finish(f"{run}~extract", "token", RunState.SUCCEEDED)
    assert samples(ledger)[OVER] == 0
    begin(ledger, f"{run}~load")
    ledger.finish(f"{run}~load", "token", RunState.SUCCEEDED)
    assert samples(ledger)[OVER] == 1
    assert due_of(ledger) == tick_after(spec, ledger, timedelta(hours=3))


def test_a_run_given_up_for_dead_that_reports_after_all_counts_once(ledger: Ledger) -> None:
    spec = job(ledger, max_duration="1m")
    at_work(ledger, spec, 0)
    has_run_for(ledger, run_id(spec, 0), timedelta(seconds=100))
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.acknowledge_server()
    assert [found.kind for found in ledger.rescue()] == ["rescued"]
    assert samples(ledger)[OVER] == 0
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert samples(ledger)[OVER] == 1
