"""Runs of a serial queue whose lease ran out: the queue is never worked by two that are told so."""

from __future__ import annotations

import pytest

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import LeaseState, Refusal, Refused
from tests.ledger.jobs import admitted, begin, job, lease_runs_out, renew, run_id, ticks


@pytest.fixture
def runs(ledger: Ledger) -> tuple[str, str]:
    """Two of different jobs on one queue; the first has begun, and its lease ran out unnoticed."""
    specs = [job(ledger, name, serial="reports") for name in ("first", "second")]
    for spec in specs:
        ledger.admit(ticks(spec, 1))
    first, second = (run_id(spec, 1) for spec in specs)
    begin(ledger, first, "silent")
    assert ledger.begin(second, "early", "worker") == Refused(second, Refusal.PARKED, first)
    lease_runs_out(ledger, specs[0], first)
    ledger.client.delete(ledger.keys.lock(specs[0].serial_lock))
    return first, second


def test_who_comes_back_while_another_works_its_queue_is_told_to_stop(
    ledger: Ledger, runs: tuple[str, str]
) -> None:
    first, second = runs
    ledger.rescue()
    begin(ledger, second)
    assert renew(ledger, first, "silent") is LeaseState.LOST
    ledger.finish(second, "token", RunState.SUCCEEDED)
    assert begin(ledger, first, "again").attempt == 2


def test_two_at_work_on_one_queue_are_an_overlap(ledger: Ledger, runs: tuple[str, str]) -> None:
    first, second = runs
    ledger.rescue()
    assert renew(ledger, first, "silent") is LeaseState.REASSERTED, "nobody was beside it"
    assert "overlaps" not in ledger.job("first").counters
    lease_runs_out(ledger, ledger.spec("first"), first)
    ledger.client.delete(ledger.keys.lock(ledger.spec("first").serial_lock))
    ledger.rescue()
    begin(ledger, second)
    for _ in range(2):
        [renewal] = ledger.renew([(first, "silent", True)])
        assert (renewal.state, renewal.detail) == (LeaseState.LOST, second)
    assert ledger.job("first").counters["overlaps"] == 1
    assert ledger.run(first).overlapped_with == second
    assert ledger.run(second).overlapped_with == first
    assert "overlaps" not in ledger.job("second").counters


def test_a_silent_run_is_settled_before_another_works_its_queue(
    ledger: Ledger, runs: tuple[str, str]
) -> None:
    first, second = runs
    begin(ledger, second)
    assert ledger.run(first).state is RunState.QUEUED
    assert renew(ledger, first, "silent") is LeaseState.LOST


def test_who_comes_back_first_keeps_the_queue(ledger: Ledger, runs: tuple[str, str]) -> None:
    first, second = runs
    assert renew(ledger, first, "silent") is LeaseState.REASSERTED
    assert ledger.begin(second, "token", "worker") == Refused(second, Refusal.PARKED, first)


def test_a_step_is_not_begun_when_what_was_silent_before_it_ends_its_run(ledger: Ledger) -> None:
    steps = [{"name": name, "task": "proj.step", "priority": 1} for name in ("a", "b")]
    spec = admitted(ledger, 1, task=None, steps=steps, serial=True, on_crash="fail")
    run = run_id(spec, 1)
    begin(ledger, f"{run}/a", "silent")
    ledger.client.delete(ledger.keys.lock(spec.serial_lock))
    ledger.client.zadd(ledger.keys.leases, {f"{run}/a": 1})
    answer = ledger.begin(f"{run}/b", "token", "worker")
    assert answer == Refused(f"{run}/b", Refusal.DUPLICATE, "cancelled")
    assert ledger.run(run).state is RunState.FAILED


@pytest.mark.parametrize("does", ["renews", "ends"])
def test_a_run_taken_back_after_another_ran_on_its_queue_overlapped(
    ledger: Ledger, runs: tuple[str, str], does: str
) -> None:
    first, second = runs
    ledger.rescue()
    begin(ledger, second)
    ledger.finish(second, "token", RunState.SUCCEEDED)
    if does == "renews":
        [renewal] = ledger.renew([(first, "silent", True)])
        assert renewal.state is LeaseState.REASSERTED
    else:
        ledger.finish(first, "silent", RunState.SUCCEEDED)
        assert ledger.run(first).state is RunState.SUCCEEDED
    assert ledger.job("first").counters["overlaps"] == 1
    assert ledger.run(first).overlapped_with == second
