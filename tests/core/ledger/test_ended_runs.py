"""A run that has ended keeps no copy of its job's rules, and is shown and answered as ever."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from supervisor.job.run import NO_RULES, RunState
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import Cancellation, Ending, LeaseState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.operate.shapes import whole_run
from supervisor.testing import lease_runs_out
from tests.jobs import admitted, begin, job, renew, run_id, ticks
from tests.waiting import wait_until


@pytest.mark.parametrize("outcome", [RunState.SUCCEEDED, RunState.FAILED])
def test_a_run_that_ended_keeps_no_rules(ledger: Ledger, outcome: RunState) -> None:
    run = run_id(admitted(ledger, 0), 0)
    begin(ledger, run)
    ledger.finish(run, "token", outcome)
    assert "rules" not in ledger.client.hgetall(ledger.keys.run(run))
    assert ledger.run(run).rules == NO_RULES.model_copy(update={"lock": "nightly"})


@pytest.mark.parametrize("ends", ["is skipped", "expires", "is cancelled", "is lost"])
def test_a_run_that_ended_otherwise_keeps_none_either(ledger: Ledger, ends: str) -> None:
    spec = admitted(ledger, 0, 1, on_crash="fail")
    run = run_id(spec, 1 if ends == "is skipped" else 0)
    if ends == "is lost":
        begin(ledger, run)
    if ends == "is cancelled":
        ledger.cancel(run, "not needed")
    elif ends != "is skipped":
        lease_runs_out(ledger, run)
        ledger.rescue()
    assert not ledger.run(run).state.is_open
    assert "rules" not in ledger.client.hgetall(ledger.keys.run(run))


def test_what_is_shown_of_the_rules_stays(ledger: Ledger) -> None:
    keys = {"mask": ["a"], "max_duration": "1h", "min_duration": "1m", "max_retries": 3}
    run = run_id(admitted(ledger, 0, **keys), 0)
    begin(ledger, run)
    ledger.finish(run, "token", RunState.SUCCEEDED)
    kept = json.loads(ledger.client.hget(ledger.keys.run(run), "rules") or "")
    assert kept == {"mask": ["a"], "max_duration": 3_600_000, "min_duration": 60_000}
    assert ledger.run(run).duration_fault == "min_duration"


@pytest.mark.parametrize(("keys", "waits"), [({}, False), ({"overlap": "queue_one"}, True)])
def test_a_skipped_run_hides_what_its_job_hides(
    ledger: Ledger, keys: dict[str, Any], *, waits: bool
) -> None:
    """waits: for a while, until it is skipped."""
    step = {"name": "pay", "priority": 1, "task": "proj.pay"}
    spec = job(ledger, task=None, steps=[step], params={"card": ""}, mask=["card"], **keys)
    ledger.trigger(spec)
    soon = timedelta(milliseconds=1) if waits else None
    skipped = ledger.trigger(spec, RunRequest(params={"card": "4111"}, max_wait=soon))
    wait_until(lambda: is_skipped(ledger, skipped.id))
    assert whole_run(ledger, ledger.run(skipped.id)).params == {"card": "***"}


def is_skipped(ledger: Ledger, run: str) -> bool:
    """As beat finds it, which looks for runs that have waited long enough."""
    ledger.rescue()
    return ledger.run(run).state is RunState.SKIPPED


def test_a_run_whose_rules_are_gone_still_tells_of_an_overlap(ledger: Ledger) -> None:
    keys: dict[str, Any] = {"overlap": "queue_all", "on_crash": "fail"}
    notify = [{"url": "https://example.com/hook", "events": ["overlapped"]}]
    spec = admitted(ledger, 0, 1, notify=notify, **keys)
    begin(ledger, run_id(spec, 0))
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    begin(ledger, run_id(spec, 1), "successor")
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    event = json.loads(ledger.client.lindex(ledger.keys.events, -1))
    assert (event["event"], event["run"]) == ("overlapped", run_id(spec, 0))


def test_a_second_word_of_it_is_answered_as_ever(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    run = run_id(spec, 0)
    begin(ledger, run)
    ledger.finish(run, "token", RunState.SUCCEEDED)
    found = ledger.run(run)
    verdicts = [
        ledger.finish(run, token, outcome).ending
        for token in ("token", "other")
        for outcome in (RunState.SUCCEEDED, RunState.FAILED, RunState.LOST)
    ]
    assert verdicts == 3 * [Ending.ALREADY] + 3 * [Ending.STALE]
    assert renew(ledger, run) is renew(ledger, run, "other") is LeaseState.ENDED
    refused = [ledger.begin(run, token, "worker") for token in ("token", "other")]
    assert [each.reason for each in refused] == 2 * ["ended"]  # type: ignore[union-attr]
    assert ledger.admit(ticks(spec, 0))[0].placement is Placement.DUPLICATE
    assert ledger.cancel(run, "late") is Cancellation.NOT_OPEN
    assert replace(ledger.run(run), duplicates=0) == found
