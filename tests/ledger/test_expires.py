"""A call that says when it expires: no worker has begun it by then, or none ever does."""

from __future__ import annotations

from datetime import timedelta

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Placement, Refusal, Refused
from supervisor.ledger.requests import RunRequest
from tests.ledger.jobs import begin, job
from tests.waiting import wait_until

LATER = timedelta(minutes=10)


def test_waiting_for_the_lock_is_part_of_its_time(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    first = ledger.trigger(spec)
    begin(ledger, first.id)
    second = ledger.admit_request(spec, RunRequest(expires=LATER))
    expires_at = ledger.run(second.run_id).expires_at
    assert expires_at is not None
    assert ledger.client.zscore(ledger.keys.leases, second.run_id) == ms(ledger, second.run_id)
    ledger.client.hincrby(
        ledger.keys.run(second.run_id), "expires", -5 * 60_000
    )  # half of it passed
    ledger.finish(first.id, "token", RunState.SUCCEEDED)
    assert ledger.run(second.run_id).state is RunState.QUEUED
    assert ledger.client.pttl(ledger.keys.lock(spec.lock)) <= 5 * 60_000
    assert ledger.client.zscore(ledger.keys.leases, second.run_id) == ms(ledger, second.run_id)


def test_it_is_skipped_when_it_waits_until_then(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    begin(ledger, ledger.trigger(spec).id)
    waits = ledger.admit_request(spec, RunRequest(expires=timedelta(milliseconds=20)))
    assert waits.placement is Placement.WAIT
    wait_until(ledger.rescue)
    run = ledger.run(waits.run_id)
    assert (run.state, run.reason) == (RunState.SKIPPED, "wait_expired")


def test_a_start_later_than_that_never_comes(ledger: Ledger) -> None:
    spec = job(ledger)
    asked = RunRequest(expires=timedelta(milliseconds=10), delay=timedelta(milliseconds=30))
    late = ledger.admit_request(spec, asked)
    assert late.placement is Placement.DELAY
    wait_until(lambda: ledger.rescue() and ledger.run(late.run_id).state is not RunState.WAITING)
    answer = ledger.begin(late.run_id, "token", "worker")
    assert answer == Refused(late.run_id, Refusal.EXPIRED)
    run = ledger.run(late.run_id)
    assert (run.state, run.reason) == (RunState.EXPIRED, "expires passed")


def test_one_that_was_begun_in_time_is_tried_again_after_it(ledger: Ledger) -> None:
    spec = job(ledger)
    called = ledger.admit_request(spec, RunRequest(expires=LATER))
    begin(ledger, called.run_id)
    ledger.client.hset(ledger.keys.run(called.run_id), "expires", 1)
    ledger.retry(called.run_id, "token", timedelta(), "not yet")
    wait_until(ledger.rescue)
    assert ledger.client.pttl(ledger.keys.lock(spec.lock)) > spec.start_deadline / timedelta(
        milliseconds=2
    )
    assert begin(ledger, called.run_id, "second").attempt == 2


def test_a_drained_queue_does_not_hold_it_beyond_that(ledger: Ledger) -> None:
    spec = job(ledger)
    called = ledger.admit_request(spec, RunRequest(expires=timedelta(milliseconds=20)))
    ledger.sent({called.run_id: "mail"})
    ledger.drains.drain("mail")
    wait_until(ledger.rescue)
    assert ledger.run(called.run_id).state is RunState.EXPIRED


def ms(ledger: Ledger, run_id: str) -> int:
    return int(ledger.client.hget(ledger.keys.run(run_id), "expires"))
