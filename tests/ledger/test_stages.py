"""Runs of several steps: stage by stage, every step once, one end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import LARGEST_KEPT_PARAM
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, LeaseState, ms_of
from tests.ledger.jobs import begin, job, lock_is_free, renew, run_id, ticks

STEPS = (
    {"task": "proj.extract", "priority": 3},
    {"task": "proj.scan", "priority": 3},
    {"task": "proj.convert", "priority": 2},
    {"task": "proj.index", "priority": 1},
)


def pipeline(ledger: Ledger, steps: Any = STEPS, **keys: Any) -> JobSpec:
    return job(ledger, task=None, steps=steps, **keys)


@pytest.fixture
def spec(ledger: Ledger) -> JobSpec:
    return pipeline(ledger)


@pytest.fixture
def run(ledger: Ledger, spec: JobSpec) -> str:
    ledger.admit(ticks(spec, 1))
    return run_id(spec, 1)


def open_steps(ledger: Ledger, run: str) -> list[str]:
    return sorted(below.partition("/")[2] for below in ledger.steps.below([run]))


def succeed(ledger: Ledger, run: str, step: str, **returned: Any) -> Any:
    place = f"{run}/{step}"
    begin(ledger, place, place)
    return ledger.finish(place, place, RunState.SUCCEEDED, returned=returned)


def fail(ledger: Ledger, run: str, step: str) -> Any:
    begin(ledger, f"{run}/{step}", step)
    return ledger.finish(f"{run}/{step}", step, RunState.FAILED, "ValueError: no")


def params(ledger: Ledger, run: str) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in ledger.steps.params(run).items()}


def test_a_step_that_fails_says_so_in_the_log_of_its_run(ledger: Ledger, run: str) -> None:
    fail(ledger, run, "extract")
    [line] = ledger.reports.lines(run)
    found = (line.step, line.attempt, line.number, line.text)
    assert found == ("extract", 1, 0, "failed: ValueError: no")


def test_the_run_begins_with_its_first_step(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}/extract")
    assert ledger.run(run).state is RunState.RUNNING
    begin(ledger, f"{run}/scan", "other")
    counters = ledger.job(spec.name).counters
    assert (counters["started"], counters["ticks"]) == (1, 1)


def test_what_a_stage_returns_is_handed_to_the_next(ledger: Ledger) -> None:
    spec = pipeline(ledger, params={"tree": ".", "depth": 1})
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    succeed(ledger, run, "extract", files=["a", "b"], depth=2)
    assert params(ledger, run) == {"tree": ".", "depth": 1}
    succeed(ledger, run, "scan", sizes={})
    assert params(ledger, run) == {"tree": ".", "depth": 2, "files": ["a", "b"], "sizes": {}}


@pytest.mark.parametrize("order", [("extract", "scan"), ("scan", "extract")])
def test_of_two_that_return_the_same_the_later_named_holds(
    ledger: Ledger, run: str, order: tuple[str, str]
) -> None:
    for step in order:
        succeed(ledger, run, step, best=step)
    assert params(ledger, run) == {"best": "scan"}


def test_a_failed_step_ends_the_run(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}/scan", "scan")
    fail(ledger, run, "extract")
    assert ledger.run(run).state is RunState.RUNNING
    ledger.finish(f"{run}/scan", "scan", RunState.SUCCEEDED)
    ended = ledger.run(run)
    assert (ended.state, ended.error_step) == (RunState.FAILED, "extract")
    assert ended.reason == "step extract failed: ValueError: no"
    assert lock_is_free(ledger, spec)


def goes_silent(ledger: Ledger, place: str) -> None:
    """What happens when nobody renews for the lease's time, without the waiting."""
    ledger.client.zadd(ledger.keys.leases, {place: 1})


def test_a_step_whose_worker_died_is_run_again(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}/extract", "first")
    goes_silent(ledger, f"{run}/extract")
    assert [rescue.kind for rescue in ledger.rescue()] == ["rescued"]
    second = begin(ledger, f"{run}/extract", "second")
    assert second.attempt == 2
    assert renew(ledger, f"{run}/extract", "first") is LeaseState.LOST
    assert ledger.job(spec.name).counters["overlaps"] == 1
    assert ledger.finish(f"{run}/extract", "first", RunState.SUCCEEDED).ending is Ending.STALE


def test_a_steps_lease_holds_its_runs_lock(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}/extract")
    lock, soon = ledger.keys.lock(spec.lock), ms_of(ledger.now()) + 1000
    ledger.client.pexpire(lock, 1000)
    ledger.client.zadd(ledger.keys.leases, {run: soon})
    assert renew(ledger, f"{run}/extract") is LeaseState.RENEWED
    assert ledger.client.pttl(lock) > 1000


def test_a_step_whose_lease_was_forgotten_goes_on(ledger: Ledger, run: str) -> None:
    begin(ledger, f"{run}/extract")
    ledger.client.zrem(ledger.keys.leases, f"{run}/extract")
    assert renew(ledger, f"{run}/extract") is LeaseState.REASSERTED
    assert renew(ledger, f"{run}/extract") is LeaseState.RENEWED


def test_a_run_that_is_stuck_between_stages_is_mended(ledger: Ledger, run: str) -> None:
    """No function leaves one; a server that lost its last writes may."""
    succeed(ledger, run, "extract")
    ledger.client.delete(ledger.keys.run(f"{run}/scan"))
    ledger.client.delete(ledger.keys.lock(run.partition("@")[0]))
    goes_silent(ledger, run)
    ledger.rescue()
    assert open_steps(ledger, run) == ["convert"]


def test_an_edit_does_not_change_a_run_that_is_on_its_way(ledger: Ledger, run: str) -> None:
    pipeline(ledger, STEPS[:1])
    for step in ("extract", "scan", "convert"):
        succeed(ledger, run, step)
    assert open_steps(ledger, run) == ["index"]


def test_what_belongs_to_an_ended_run_expires(ledger: Ledger) -> None:
    longest = "x" * (LARGEST_KEPT_PARAM - len('""'))
    params_of_it = {"tree": ".", "long": longest, "too_long": longest + "x"}
    spec = pipeline(ledger, STEPS[2:], params=params_of_it)
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    for step in ("convert", "index"):
        succeed(ledger, run, step)
    keys = list(ledger.client.scan_iter(f"*{run}*"))
    assert len(keys) == 4
    assert all(ledger.client.ttl(key) > 0 for key in keys)
    dropped = {"too_long": "(dropped when the run ended)"}
    assert params(ledger, run) == params_of_it | dropped
