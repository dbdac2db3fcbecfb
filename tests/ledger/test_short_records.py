"""A run that succeeds at once has a short record, and is shown as if it had a long one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import takewhile
from typing import Any

import pytest

from supervisor.job.run import NO_RULES, Run, RunRules, RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import run_from
from supervisor.ledger.replies import Cancellation, Ending, LeaseState, Placement, Refusal, ms_of
from supervisor.ledger.requests import RunRequest
from supervisor.operate.shapes import whole_run
from tests.ledger.jobs import admitted, begin, begun, job, renew, run_id, ticks
from tests.waiting import wait_until

LONG, HOUR = "x" * 100, timedelta(hours=1)


def is_in_one_piece(ledger: Ledger, run: str) -> bool:
    return bool(ledger.client.object("encoding", ledger.keys.run(run)) == "listpack")


def bytes_of(ledger: Ledger, run: str) -> int:
    return int(ledger.client.memory_usage(ledger.keys.run(run)) or 0)


def succeeded(ledger: Ledger, run: str, reason: str = "") -> Run:
    begin(ledger, run)
    ledger.finish(run, "token", RunState.SUCCEEDED, reason)
    return ledger.run(run)


def test_it_takes_a_third(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_all")
    good, bad = run_id(spec, 0), run_id(spec, 1)
    succeeded(ledger, good)
    begin(ledger, bad)
    ledger.finish(bad, "token", RunState.FAILED)
    assert is_in_one_piece(ledger, good)
    # Times of a slow machine have more digits, and memory comes in steps.
    assert 2.8 * bytes_of(ledger, good) < bytes_of(ledger, bad)


def test_a_run_that_is_skipped_at_once_is_short_as_well(ledger: Ledger) -> None:
    spec = begun(ledger)
    ledger.admit(ticks(spec, 1))
    skipped = ledger.run(run_id(spec, 1))
    assert is_in_one_piece(ledger, skipped.id)
    assert (skipped.state, skipped.blocked_by) == (RunState.SKIPPED, run_id(spec, 0))
    assert (skipped.blocker and skipped.blocker.state, skipped.rules) == ("running", NO_RULES)


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


@pytest.mark.parametrize("has_trouble", [False, True])
@pytest.mark.parametrize(
    ("keys", "asked", "reason"),
    [
        ({}, {}, ""),
        ({"max_wait": "1h"}, {"args": [1], "kwargs": {"a": 2}, "options": {"priority": 3}}, ""),
        ({"mask": True}, {"args": [LONG], "is_awaited": True}, "as asked"),
        (
            {"mask": ["a"], "max_duration": "1h", "min_duration": "1m"},
            {"expires": HOUR},
            "as asked",
        ),
        ({"mask": ["a" * 50], "lease_ttl": "7s"}, {"expires": HOUR, "args": [LONG]}, ""),
    ],
)
def test_it_is_read_as_if_all_of_it_was_kept(
    ledger: Ledger, keys: dict[str, Any], asked: dict[str, Any], reason: str, *, has_trouble: bool
) -> None:
    """has_trouble: something is written of it that is not of an ordinary run."""
    run = ledger.trigger(job(ledger, **keys), RunRequest(**asked)).id
    ledger.sent({run: "celery"})
    begin(ledger, run)
    if has_trouble:
        ledger.client.hset(ledger.keys.run(run), mapping={"duplicates": 2, "followed_by": "done x"})
    before = ledger.client.hgetall(ledger.keys.run(run))
    ledger.finish(run, "token", RunState.SUCCEEDED, reason)
    found, after = ledger.run(run), ledger.client.hgetall(ledger.keys.run(run))
    whole = run_from(run, full(before, found, reason))
    assert found == (whole if has_trouble else without_the_unshown(whole))
    assert after.get("followed_by") == before.get("followed_by")
    assert is_in_one_piece(ledger, run) == all(len(value) <= 64 for value in after.values())


def without_the_unshown(run: Run) -> Run:
    """Of a run that has ended: when its message was sent, and rules that only decided."""
    shown = ("lease_ttl_ms", "mask", "follows", "max_duration_ms", "min_duration_ms")
    said = {name: getattr(run.rules, name) for name in shown if name in run.rules.model_fields_set}
    return replace(run, sent_at=None, rules=RunRules(lock="", serial="", **said))


def test_long_arguments_are_not_written_again(ledger: Ledger) -> None:
    run = ledger.trigger(job(ledger), RunRequest(args=[LONG])).id
    begin(ledger, run)
    with ledger.client.monitor() as monitor:
        ledger.finish(run, "token", RunState.SUCCEEDED)
        ledger.client.echo("over")
        said = takewhile(lambda text: "over" not in text, (c["command"] for c in monitor.listen()))
        assert not [text for text in said if LONG in text]
    assert ledger.run(run).args == [LONG]


def full(before: dict[str, str], run: Run, reason: str) -> dict[str, str]:
    """All fields of a record that never was short."""
    assert run.started_at and run.finished_at
    attempt = {
        "number": 1,
        "started": ms_of(run.started_at),
        "finished": ms_of(run.finished_at),
        "outcome": "succeeded",
        "worker": "worker",
        "reason": reason,
    }
    ended = {"state": "succeeded", "finished": str(ms_of(run.finished_at)), "reason": reason}
    return {**before, **ended, "attempts": json.dumps(attempt) + "\n", "last_token": "token"}


def test_a_second_word_of_it_is_answered_as_ever(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    run = run_id(spec, 0)
    found = succeeded(ledger, run)
    verdicts = [
        ledger.finish(run, token, outcome).ending
        for token in ("token", "other")
        for outcome in (RunState.SUCCEEDED, RunState.FAILED, RunState.LOST)
    ]
    assert verdicts == 3 * [Ending.ALREADY] + 3 * [Ending.STALE]
    assert renew(ledger, run) is renew(ledger, run, "other") is LeaseState.ENDED
    refused = [ledger.begin(run, token, "worker") for token in ("token", "other")]
    assert [each.refusal for each in refused] == 2 * [Refusal.DUPLICATE]  # type: ignore[union-attr]
    assert ledger.admit(ticks(spec, 0))[0].placement is Placement.DUPLICATE
    assert ledger.cancel(run, "late") is Cancellation.NOT_OPEN
    assert replace(ledger.run(run), duplicates=0) == found


def test_functions_of_a_version_without_short_records_can_read_it(ledger: Ledger) -> None:
    """They load the rules of a run, whose lock and serial queue are texts to them."""
    run = run_id(admitted(ledger, 0), 0)
    succeeded(ledger, run)
    fields = ledger.client.hgetall(ledger.keys.run(run))
    rules = json.loads(fields["rules"])
    assert (rules["lock"], rules["serial"]) == ("", "")
    assert {"job", "state", "last_token", "nominal", "attempt", "fence", "started"} <= set(fields)
