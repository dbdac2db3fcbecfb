"""Who runs beside whom: slots, keys, replacing, deadlines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from supervisor.errors import InvalidKey
from supervisor.job.run import RunState
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import LeaseState, Rescue
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import OUTBOX_DELAY
from supervisor.ledger.run_request import RunRequest
from supervisor.testing import comes_due, lease_runs_out
from supervisor.times import ms_of
from tests.damage import lose_lock, stray
from tests.jobs import (
    admitted,
    at_work,
    begin,
    begun,
    job,
    lock_is_free,
    renew,
    run_id,
    states,
    ticks,
)
from tests.waiting import let_pass, wait_until


def commands(ledger: Ledger) -> int:
    """How many the server was asked for so far, by clients and by functions."""
    return sum(int(stats["calls"]) for stats in ledger.client.info("commandstats").values())


def test_a_run_without_a_bound_costs_the_same_however_many_are_open(ledger: Ledger) -> None:
    spec = job(ledger, overlap="allow")
    asked = []
    for second in (10, 110):
        ledger.admit(ticks(spec, *range(second - 9, second)))
        begin(ledger, run_id(spec, second - 1), f"token-{second}")
        lease_runs_out(ledger, run_id(spec, second - 1))
        before = commands(ledger)
        ledger.admit(ticks(spec, second))
        ledger.rescue()
        asked.append(commands(ledger) - before)
        assert ledger.run(run_id(spec, second - 1)).state is RunState.QUEUED
        ledger.admit(ticks(spec, *range(second + 1, second + 80)))
    assert asked[0] == asked[1]


def test_runs_with_and_without_a_bound_under_one_lock_never_share_a_slot(ledger: Ledger) -> None:
    bounded = job(ledger, "bounded", key="shared", max_running=3, overlap="queue_all")
    free = job(ledger, "free", key="shared", overlap="allow")
    ledger.admit(ticks(bounded, 0) + ticks(free, 0, 1) + ticks(bounded, 1, 2))
    assert states(ledger, free) == ["queued", "queued"]
    # Those without a bound count for those with one.
    assert states(ledger, bounded) == ["queued", "waiting", "waiting"]
    begin(ledger, run_id(free, 0))
    ended = ledger.finish(run_id(free, 0), "token", RunState.SUCCEEDED)
    assert ended.to_publish == (run_id(bounded, 1),)
    ledger.admit(ticks(free, 2))
    runs = [run for spec in (bounded, free) for run in ledger.history(spec.name)]
    held = [run.id for run in runs if run.state is RunState.QUEUED]
    slots = [ledger.client.hget(ledger.keys.run(run), "slot") for run in held]
    assert len(set(slots)) == len(held) == 4


def test_a_run_is_blocked_by_the_holder_that_came_first(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, max_running=2)
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    ledger.admit(ticks(spec, 2))  # in the lower slot
    [blocked] = ledger.admit(ticks(spec, 3))
    assert blocked.blocked_by == run_id(spec, 1)


def test_who_may_run_beside_others_overtakes_none_that_waits(ledger: Ledger) -> None:
    alone = job(ledger, key="shared", overlap="queue_all")
    beside = job(ledger, "beside", key="shared", max_running=2)
    ledger.admit(ticks(alone, 0, 1))
    [admission] = ledger.admit(ticks(beside, 2))
    assert (admission.placement, admission.reason) == (Placement.SKIP, "overlap")


def test_a_run_that_waits_for_nobody_is_promoted_by_the_next_admission(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    ledger.client.set(ledger.keys.lock(spec.lock), "of a foreign app")
    ledger.admit(ticks(spec, 0))
    lose_lock(ledger, spec)
    ledger.admit(ticks(spec, 1))
    assert states(ledger, spec) == ["queued", "waiting"]


def test_a_template_splits_a_job_by_its_arguments(ledger: Ledger) -> None:
    spec = job(ledger, key="import:{url}", kwargs={"url": "a"})
    runs = [ledger.trigger(spec, RunRequest(kwargs={"url": url})) for url in ("a", "b", "a")]
    assert [run.state for run in runs] == [RunState.QUEUED, RunState.QUEUED, RunState.SKIPPED]
    with pytest.raises(InvalidKey, match="no argument 'url'"):
        ledger.trigger(spec, RunRequest(kwargs={"uri": "a"}))


@pytest.mark.parametrize("keys", [{}, {"max_wait": "1h"}])
def test_a_run_waits_on_when_it_is_looked_at_early(ledger: Ledger, keys: dict[str, str]) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_one", **keys)
    until = ledger.client.zscore(ledger.keys.leases, run_id(spec, 1))
    stray(ledger, ledger.keys.leases, run_id(spec, 1))
    assert ledger.rescue() == ()
    assert states(ledger, spec) == ["queued", "waiting"]
    assert ledger.client.zscore(ledger.keys.leases, run_id(spec, 1)) == until


def test_a_requeued_run_gives_up_when_its_time_to_wait_has_ended(ledger: Ledger) -> None:
    spec = job(ledger, overlap="requeue", requeue_delay="1s", max_wait="25ms", max_requeues=99)
    ledger.admit(ticks(spec, 0, 1))
    wait_until(lambda: ledger.rescue() and not ledger.run(run_id(spec, 1)).state.is_open)
    run = ledger.run(run_id(spec, 1))
    assert (run.reason, run.requeues < 5) == ("wait_expired", True)


def test_a_run_is_put_off_no_more_often_than_its_job_says(ledger: Ledger) -> None:
    spec = job(ledger, overlap="requeue", requeue_delay="1s", max_requeues=1)
    ledger.admit(ticks(spec, 0, 1))
    wait_until(lambda: ledger.rescue() and not ledger.run(run_id(spec, 1)).state.is_open)
    run = ledger.run(run_id(spec, 1))
    assert (run.reason, run.requeues) == ("requeues_exhausted", 1)


def test_a_delayed_run_gets_its_place_when_its_time_has_come(ledger: Ledger) -> None:
    spec = job(ledger)
    run = ledger.trigger(spec, RunRequest(delay=timedelta(milliseconds=30)))
    assert (run.state, ledger.outbox()) == (RunState.WAITING, [])
    assert run.nominal_at - run.queued_at == timedelta(milliseconds=30)
    assert lock_is_free(ledger, spec)
    wait_until(lambda: ledger.rescue() and ledger.outbox() == [run.id])


@pytest.mark.parametrize("stale", ["nightly@nowhere", ""])
def test_a_turn_that_no_waiting_run_can_take_goes_to_the_next(ledger: Ledger, stale: str) -> None:
    """As after a restart with a part of the data."""
    spec = admitted(ledger, 0, 1, overlap="queue_all")
    stray(ledger, ledger.keys.waiting(spec.lock), stale or run_id(spec, 0))
    begin(ledger, run_id(spec, 0))
    finished = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert finished.to_publish == (run_id(spec, 1),)
    assert states(ledger, spec) == ["succeeded", "queued"]
    assert not ledger.client.exists(ledger.keys.waiting(spec.lock))


def test_what_a_worker_promoted_is_left_to_it_to_publish(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_all")
    ledger.sent(dict.fromkeys(ledger.outbox(), "celery"))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert ledger.outbox() == []
    [(run, at)] = ledger.client.zrange(ledger.keys.outbox, 0, -1, withscores=True)
    assert (run, at <= ms_of(ledger.now() + OUTBOX_DELAY)) == (run_id(spec, 1), True)


def test_beat_publishes_at_once_what_a_dead_child_leaves(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_all", on_crash="fail")
    ledger.sent(dict.fromkeys(ledger.outbox(), "celery"))
    begin(ledger, run_id(spec, 0))
    ledger.report_dead(run_id(spec, 0), "token", "worker process 7 died")
    assert ledger.outbox() == [run_id(spec, 1)]


def test_a_worker_is_told_of_all_that_its_report_queued(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, 2, overlap="queue_all", max_running=2)
    for second in (0, 1):
        begin(ledger, run_id(spec, second))
    lease_runs_out(ledger, run_id(spec, 1))
    finished = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert {*finished.to_publish} == {run_id(spec, 1), run_id(spec, 2)}
    assert states(ledger, spec) == ["succeeded", "queued", "queued"]


def test_an_attempt_given_up_overlaps_once_more_run_than_may(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all", max_running=3, on_crash="fail")
    at_work(ledger, spec, 0)
    at_work(ledger, spec, 1, "token-1")
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    at_work(ledger, spec, 2, "token-2")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    assert "overlaps" not in ledger.job(spec.name).counters, "three may run"
    at_work(ledger, spec, 3, "token-3")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    ledger.finish(run_id(spec, 1), "token-1", RunState.SUCCEEDED)
    at_work(ledger, spec, 4, "token-4")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    assert ledger.job(spec.name).counters["overlaps"] == 1
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(spec, 3)
    assert ledger.run(run_id(spec, 3)).overlapped_with == run_id(spec, 0)
    assert ledger.run(run_id(spec, 4)).overlapped_with is None


def test_a_run_that_is_queued_overlaps_with_none(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all", max_running=2, on_crash="fail")
    at_work(ledger, spec, 0)
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    ledger.admit(ticks(spec, 1, 2))
    begin(ledger, run_id(spec, 1), "beside")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    assert "overlaps" not in ledger.job(spec.name).counters, "two may run"


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["open", "cancelled"])
def test_an_attempt_given_up_does_not_overlap_with_a_begin_that_is_undone(
    ledger: Ledger, is_cancelled: bool
) -> None:
    spec = job(ledger, overlap="queue_all", serial="one", on_crash="fail")
    beside = job(ledger, "beside", serial="one")
    at_work(ledger, spec, 0)
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    at_work(ledger, spec, 1, "unheard")
    if is_cancelled:
        ledger.cancel(run_id(spec, 1), "")
    ledger.undo_begin(run_id(spec, 1), "unheard")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    assert "overlaps" not in ledger.job(spec.name).counters
    at_work(ledger, beside, 2, "heard")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    assert ledger.job(spec.name).counters["overlaps"] == 1
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(beside, 2)


@pytest.mark.parametrize("serial", [False, "one"], ids=["lock", "serial"])
def test_it_overlaps_once_the_run_has_begun_again(ledger: Ledger, serial: bool | str) -> None:
    spec = job(ledger, overlap="queue_all", serial=serial, on_crash="fail")
    at_work(ledger, spec, 0)
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    at_work(ledger, spec, 1, "unheard")
    ledger.undo_begin(run_id(spec, 1), "unheard")
    let_pass(0.02)
    again_at = ledger.now()
    begin(ledger, run_id(spec, 1), "heard")
    late = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    counters = ledger.job(spec.name).counters
    assert (late.overlapped_with, counters["overlaps"]) == (run_id(spec, 1), 1)
    assert counters["overlap_ms"] <= (ledger.now() - again_at) / timedelta(milliseconds=1) + 1


def test_a_run_without_a_bound_may_begin_beside_one_that_was_given_up(ledger: Ledger) -> None:
    bounded = job(ledger, "bounded", key="shared", on_crash="fail")
    free = job(ledger, "free", key="shared", overlap="allow")
    at_work(ledger, bounded, 0)
    lease_runs_out(ledger, run_id(bounded, 0))
    ledger.rescue()
    at_work(ledger, free, 0, "token-1")
    assert renew(ledger, run_id(bounded, 0)) is LeaseState.LOST
    assert "overlaps" not in ledger.job(bounded.name).counters


def test_a_delayed_run_whose_lock_is_held_waits_and_says_so(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, overlap="queue_one")
    run = ledger.trigger(spec, RunRequest(delay=timedelta(hours=1)))
    comes_due(ledger, run.id)
    assert ledger.rescue() == (Rescue("waiting", run.id, spec.name),)


# A job is edited while its runs are open


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"max_running": 2, "overlap": "allow"}, {}),
        ({"overlap": "allow"}, {"overlap": "skip"}),
        ({"queue": "one"}, {"serial": True}),
    ],
)
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


def test_after_an_edit_of_the_key_a_run_may_begin_beside_one_of_the_old(ledger: Ledger) -> None:
    old = admitted(ledger, 0, 1, key="old", overlap="queue_all")
    begin(ledger, run_id(old, 0))
    new = admitted(ledger, 2, 3, key="new", overlap="queue_all")
    assert states(ledger, new) == ["running", "waiting", "queued", "waiting"]
    ledger.finish(run_id(old, 0), "token", RunState.SUCCEEDED)
    assert states(ledger, new) == ["succeeded", "queued", "queued", "waiting"]
