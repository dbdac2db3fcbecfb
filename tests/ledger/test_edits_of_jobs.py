"""A job is edited while its runs are open: no two of them overlap because of the edit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import MOST_PREDECESSORS
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import RunRequest
from tests.ledger.jobs import admitted, at_work, begin, begun, job, run_id, states, ticks

#: A job before and after an edit of which lock its runs need, or of what that allows.
EDITS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {"key": "reports"}),
    ({"key": "reports"}, {}),
    ({"key": "a"}, {"key": "b"}),
    ({"key": "x:{0}", "args": [1]}, {"key": "y:{0}", "args": [1]}),
    ({"key": "{task}"}, {"key": "{task}", "task": "proj.other"}),
    ({"max_running": 2, "overlap": "allow"}, {}),
    ({"max_running": 2, "overlap": "allow", "key": "a"}, {"key": "b"}),
    ({"overlap": "allow"}, {"overlap": "skip"}),
    ({"overlap": "allow"}, {"overlap": "skip", "key": "b"}),
    ({"queue": "one"}, {"serial": True}),
)

IDS = [f"{before} to {after}" for before, after in EDITS]


@pytest.mark.parametrize(("before", "after"), EDITS, ids=IDS)
def test_no_run_begins_beside_one_that_was_admitted_before_an_edit(
    ledger: Ledger, before: dict[str, Any], after: dict[str, Any]
) -> None:
    spec = begun(ledger, **before)
    spec = admitted(ledger, 1, **after)
    ledger.trigger(spec)
    skipped = ledger.run(run_id(spec, 1))
    assert (skipped.state, skipped.blocked_by) == (RunState.SKIPPED, run_id(spec, 0))
    assert states(ledger, spec) == ["running", "skipped", "skipped"]
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    ledger.admit(ticks(spec, 2))
    assert ledger.run(run_id(spec, 2)).state is RunState.QUEUED
    ledger.admit(ticks(spec, 3))
    assert ledger.run(run_id(spec, 3)).state is RunState.SKIPPED


def test_those_that_wait_under_the_old_key_come_first(ledger: Ledger) -> None:
    old = admitted(ledger, 0, 1, key="old", overlap="queue_all")
    begin(ledger, run_id(old, 0))
    new = admitted(ledger, 2, 3, key="new", overlap="queue_all")
    assert states(ledger, new) == ["running", "waiting", "waiting", "waiting"]
    for second in (0, 1, 2):
        ledger.rescue()
        assert in_turn(ledger, new) == 1
        if second:
            begin(ledger, run_id(new, second))
        ledger.finish(run_id(new, second), "token", RunState.SUCCEEDED)
    ledger.rescue()
    assert ledger.run(run_id(new, 3)).state is RunState.QUEUED


def in_turn(ledger: Ledger, spec: JobSpec) -> int:
    """How many of the job's runs hold a lock."""
    return sum(state in ("running", "queued", "retrying") for state in states(ledger, spec))


@pytest.mark.parametrize("edits", ["a b a", "a b c", "a b c a", "a b a c"])
def test_keys_edited_again_and_back_keep_all_runs_apart(ledger: Ledger, edits: str) -> None:
    """Also callers that still know the job as it was before."""
    for second, key in enumerate(edits.split()):
        ledger.admit(ticks(job(ledger, key=key, overlap="queue_all"), second))
    spec = job(ledger)
    for second in range(len(edits.split())):
        ledger.rescue()
        assert states(ledger, spec).count("queued") == 1
        begin(ledger, run_id(spec, second))
        ledger.rescue()
        assert in_turn(ledger, spec) == 1
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)


def test_runs_due_later_hold_nothing_up_and_keep_apart_when_due(ledger: Ledger) -> None:
    old = admitted(ledger, 0, key="old", overlap="queue_all")
    later = ledger.trigger(old, RunRequest(delay=timedelta(hours=1))).id
    new = job(ledger, key="new", overlap="queue_all")
    ledger.finish(begin(ledger, run_id(old, 0)).run_id, "token", RunState.SUCCEEDED)
    ledger.admit(ticks(new, 1))
    assert ledger.run(run_id(new, 1)).state is RunState.QUEUED
    ledger.client.zadd(ledger.keys.delayed, {later: 1})
    ledger.rescue()
    assert ledger.run(later).state is RunState.WAITING
    ledger.finish(begin(ledger, run_id(new, 1)).run_id, "token", RunState.SUCCEEDED)
    ledger.rescue()
    assert ledger.run(later).state is RunState.QUEUED


def test_a_retry_keeps_runs_under_a_new_key_waiting(ledger: Ledger) -> None:
    old = begun(ledger, key="old", max_retries=3)
    ledger.retry(run_id(old, 0), "token", timedelta(hours=1))
    new = admitted(ledger, 1, key="new")
    assert states(ledger, new) == ["retrying", "skipped"]


def test_replace_ends_the_run_under_the_old_key(ledger: Ledger) -> None:
    admitted(ledger, 0, key="old")
    new = admitted(ledger, 1, key="new", overlap="replace")
    assert states(ledger, new) == ["replaced", "queued"]


def test_a_job_whose_key_stays_pays_nothing_for_others_edits(ledger: Ledger) -> None:
    spec = job(ledger, key="k:{0}", args=[1], overlap="queue_all")
    for number in range(5):
        assert ledger.trigger(spec, RunRequest(args=[number])).state is RunState.QUEUED
    assert not ledger.client.hexists(Keys(ledger.keys.prefix).job(spec.name), "rekeyed")
    assert not ledger.client.hexists(ledger.keys.job(spec.name), "generation")


def test_a_long_history_hides_no_run_under_the_old_key(ledger: Ledger) -> None:
    old = job(ledger, key="old", history=MOST_PREDECESSORS + 100)
    for _ in range(0, MOST_PREDECESSORS + 10, 10):
        ended = ledger.admit_requests(old, [RunRequest()])[0].run_id
        ledger.cancel(ended, "not wanted")
        copy_ended(ledger, old, ended, 10)
    at_work(ledger, old, 0)
    new = admitted(ledger, 1, key="new", history=MOST_PREDECESSORS + 100)
    assert ledger.run(run_id(new, 1)).state is RunState.SKIPPED


def copy_ended(ledger: Ledger, spec: JobSpec, run: str, times: int) -> None:
    """As if as many had ended."""
    keys = ledger.keys
    score = ledger.client.zscore(keys.history(spec.name), run)
    for number in range(times):
        ledger.client.copy(keys.run(run), keys.run(f"{run}-{number}"))
        ledger.client.zadd(keys.history(spec.name), {f"{run}-{number}": score})
