"""A run that was given up says late since when its work was over: till then it may overlap."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, Finished, LeaseState
from supervisor.ledger.requests import Begun
from supervisor.times import clock
from tests.ledger.jobs import begin, run_id, ticks
from tests.ledger.test_rescue import lost
from tests.waiting import wait_until

MS = timedelta(milliseconds=1)

Report = Callable[[Ledger, str, float], Finished]


def with_success(ledger: Ledger, run: str, ended_at: float) -> Finished:
    return ledger.finish(run, "token", RunState.SUCCEEDED, ended_at=ended_at)


def with_a_retry(ledger: Ledger, run: str, ended_at: float) -> Finished:
    return ledger.retry(run, "token", timedelta(hours=1), ended_at=ended_at)


def followed(ledger: Ledger, milliseconds: float) -> JobSpec:
    """A job whose first run was given up, and whose second is at work for so long."""
    spec = lost(ledger, on_crash="fail", overlap="queue_all")
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    begin(ledger, run_id(spec, 1), "successor")
    until = ledger.now() + milliseconds * MS
    wait_until(lambda: ledger.now() > until)
    return spec


@pytest.mark.parametrize("report", [with_success, with_a_retry])
def test_what_was_over_before_another_began_is_no_overlap(ledger: Ledger, report: Report) -> None:
    spec = followed(ledger, 50)
    late = report(ledger, run_id(spec, 0), clock() - 60)
    assert (late.ending, late.overlapped_with) == (Ending.STALE, None)
    counters = ledger.job(spec.name).counters
    assert (counters["leases_lost"], counters.get("overlaps")) == (1, None)


@pytest.mark.parametrize("report", [with_success, with_a_retry])
def test_what_was_over_later_overlapped_until_then(ledger: Ledger, report: Report) -> None:
    began_at = ledger.now()
    spec = followed(ledger, 1_000)
    late = report(ledger, run_id(spec, 0), clock() - 0.9)
    assert late.overlapped_with == run_id(spec, 1)
    counters = ledger.job(spec.name).counters
    assert counters["overlaps"] == 1
    assert 50 <= counters["overlap_ms"] < (ledger.now() - began_at) / MS - 800


@pytest.mark.parametrize("begun", [Begun.OVER, Begun.UNKNOWN])
def test_a_heartbeat_makes_no_overlap_of_what_may_be_over(ledger: Ledger, begun: Begun) -> None:
    spec = followed(ledger, 50)
    [renewal] = ledger.renew([(run_id(spec, 0), "token", begun)])
    assert (renewal.state, renewal.detail) == (LeaseState.LOST, None)
    assert "overlaps" not in ledger.job(spec.name).counters
    assert with_success(ledger, run_id(spec, 0), clock() - 60).overlapped_with is None


def test_what_a_heartbeat_saw_at_work_is_measured_on_from_there(ledger: Ledger) -> None:
    spec = followed(ledger, 50)
    [renewal] = ledger.renew([(run_id(spec, 0), "token", Begun.KNOWN)])
    assert (renewal.state, renewal.detail) == (LeaseState.LOST, run_id(spec, 1))
    seen = ledger.job(spec.name).counters["overlap_ms"]
    with_success(ledger, run_id(spec, 0), clock() - 60)
    counters = ledger.job(spec.name).counters
    assert (counters["overlaps"], counters["overlap_ms"]) == (1, seen)
