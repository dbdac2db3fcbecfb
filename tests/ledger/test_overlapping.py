"""Who runs beside whom: slots, keys, replacing, patience."""

from __future__ import annotations

from datetime import timedelta

import pytest

from supervisor.errors import InvalidKey
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, LeaseState, Placement, Rescue, ms_of
from supervisor.ledger.requests import RunRequest
from supervisor.ledger.scripts import HANDOVER_GRACE
from tests.ledger.jobs import (
    begin,
    job,
    lease_runs_out,
    lock_is_free,
    renew,
    run_id,
    states,
    ticks,
)
from tests.waiting import wait_until


def test_max_running_runs_are_at_work_at_once_and_no_more(ledger: Ledger) -> None:
    spec = job(ledger, max_running=2, overlap="queue_all")
    ledger.admit(ticks(spec, 0, 1, 2, 3))
    assert states(ledger, spec) == ["queued", "queued", "waiting", "waiting"]
    for second in (0, 1):
        begin(ledger, run_id(spec, second), f"token-{second}")
    ended = ledger.finish(run_id(spec, 0), "token-0", RunState.SUCCEEDED)
    assert ended.next_up == (run_id(spec, 2),)
    assert states(ledger, spec) == ["succeeded", "running", "queued", "waiting"]


def test_each_slot_has_its_own_lease(ledger: Ledger) -> None:
    spec = job(ledger, max_running=2, overlap="queue_all", on_crash="fail")
    ledger.admit(ticks(spec, 0, 1, 2))
    for second in (0, 1):
        begin(ledger, run_id(spec, second), f"token-{second}")
    lease_runs_out(ledger, spec, run_id(spec, 1))
    ledger.rescue()
    assert states(ledger, spec) == ["running", "lost", "queued"]
    assert renew(ledger, run_id(spec, 0), "token-0") is LeaseState.RENEWED
    begin(ledger, run_id(spec, 2), "token-2")
    # Two were allowed, three were at work.
    assert renew(ledger, run_id(spec, 1), "token-1") is LeaseState.LOST
    assert ledger.job(spec.name).counters["overlaps"] == 1


def test_a_late_run_that_leaves_the_number_allowed_is_no_overlap(ledger: Ledger) -> None:
    spec = job(ledger, max_running=2, on_crash="fail")
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    lease_runs_out(ledger, spec, run_id(spec, 0))
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    begin(ledger, run_id(spec, 1), "successor")
    assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
    assert "overlaps" not in ledger.job(spec.name).counters


def test_allow_without_a_bound_runs_beside_any_number(ledger: Ledger) -> None:
    spec = job(ledger, overlap="allow")
    ledger.admit(ticks(spec, *range(20)))
    for second in range(20):
        begin(ledger, run_id(spec, second), f"token-{second}")
    assert set(states(ledger, spec)) == {"running"}
    assert ledger.job(spec.name).running == 20
    for second in range(20):
        ended = ledger.finish(run_id(spec, second), f"token-{second}", RunState.SUCCEEDED)
        assert ended.ending is Ending.ENDED
    assert lock_is_free(ledger, spec)


def commands(ledger: Ledger) -> int:
    """How many the server was asked for so far, by clients and by scripts."""
    return sum(int(stats["calls"]) for stats in ledger.client.info("commandstats").values())


def test_a_run_without_a_bound_is_admitted_and_rescued_alike_however_many_are_open(
    ledger: Ledger,
) -> None:
    spec = job(ledger, overlap="allow")
    asked = []
    for second in (10, 110):
        ledger.admit(ticks(spec, *range(second - 9, second)))
        begin(ledger, run_id(spec, second - 1), f"token-{second}")
        lease_runs_out(ledger, spec, run_id(spec, second - 1))
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
    assert ended.next_up == (run_id(bounded, 1),)
    ledger.admit(ticks(free, 2))
    runs = [run for spec in (bounded, free) for run in ledger.history(spec.name)]
    held = [run.id for run in runs if run.state is RunState.QUEUED]
    slots = [ledger.client.hget(ledger.keys.run(run), "slot") for run in held]
    assert len(set(slots)) == len(held) == 4


def test_a_run_is_blocked_by_the_holder_that_came_first(ledger: Ledger) -> None:
    spec = job(ledger, max_running=2)
    ledger.admit(ticks(spec, 0, 1))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    ledger.admit(ticks(spec, 2))  # in the lower slot
    [blocked] = ledger.admit(ticks(spec, 3))
    assert blocked.blocked_by == run_id(spec, 1)


def test_replace_ends_the_run_at_work_and_is_next(ledger: Ledger) -> None:
    spec = job(ledger, overlap="replace")
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    [admission] = ledger.admit(ticks(spec, 1))
    assert (admission.placement, admission.blocked_by) == (Placement.REPLACE, run_id(spec, 0))
    [renewal] = ledger.renew([(run_id(spec, 0), "token", True)])
    assert (renewal.state, renewal.detail) == (LeaseState.STOP, "replaced")
    ended = ledger.finish(run_id(spec, 0), "token", RunState.CANCELLED)
    assert ended.next_up == (run_id(spec, 1),)
    assert states(ledger, spec) == ["replaced", "queued"]
    assert ledger.run(run_id(spec, 0)).reason == f"replaced by {run_id(spec, 1)}"
    assert ledger.job(spec.name).counters["finished:replaced"] == 1


def test_the_newest_of_those_that_replace_wins(ledger: Ledger) -> None:
    spec = job(ledger, overlap="replace")
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.admit(ticks(spec, 1, 2))
    assert states(ledger, spec) == ["running", "skipped", "waiting"]
    assert ledger.run(run_id(spec, 1)).reason == "replaced"


@pytest.mark.parametrize("retrying", [False, True])
def test_a_run_that_is_not_at_work_is_replaced_at_once(ledger: Ledger, retrying: bool) -> None:
    spec = job(ledger, overlap="replace")
    ledger.admit(ticks(spec, 0))
    if retrying:
        begin(ledger, run_id(spec, 0))
        ledger.retry(run_id(spec, 0), "token", timedelta(hours=1))
    assert ledger.admit(ticks(spec, 1))[0].placement is Placement.START
    assert states(ledger, spec) == ["replaced", "queued"]
    assert ledger.outbox() == [run_id(spec, 1)]


def test_a_dead_run_that_was_being_replaced_does_not_come_again(ledger: Ledger) -> None:
    spec = job(ledger, overlap="replace")
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.admit(ticks(spec, 1))
    lease_runs_out(ledger, spec, run_id(spec, 0))
    ledger.rescue()
    assert states(ledger, spec) == ["replaced", "queued"]


def test_jobs_with_the_same_key_exclude_each_other(ledger: Ledger) -> None:
    first, second = (job(ledger, name, key="reports") for name in ("first", "second"))
    ledger.admit(ticks(first, 0))
    [blocked] = ledger.admit(ticks(second, 0))
    assert blocked.blocked_by == run_id(first, 0)


def test_who_may_run_beside_others_overtakes_none_that_waits(ledger: Ledger) -> None:
    alone = job(ledger, key="shared", overlap="queue_all")
    beside = job(ledger, "beside", key="shared", max_running=2)
    ledger.admit(ticks(alone, 0, 1))
    [admission] = ledger.admit(ticks(beside, 2))
    assert (admission.placement, admission.reason) == (Placement.SKIP, "overlap")


def test_a_run_that_waits_for_nobody_is_promoted_by_the_next_admission(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    ledger.client.set(ledger.keys.lock(spec.lock), "a stranger's")
    ledger.admit(ticks(spec, 0))
    ledger.client.delete(ledger.keys.lock(spec.lock))
    ledger.admit(ticks(spec, 1))
    assert states(ledger, spec) == ["queued", "waiting"]


def test_a_template_splits_a_job_by_its_arguments(ledger: Ledger) -> None:
    spec = job(ledger, key="import:{url}", kwargs={"url": "a"})
    runs = [ledger.trigger(spec, RunRequest(kwargs={"url": url})) for url in ("a", "b", "a")]
    assert [run.state for run in runs] == [RunState.QUEUED, RunState.QUEUED, RunState.SKIPPED]
    with pytest.raises(InvalidKey, match="no argument 'url'"):
        ledger.trigger(spec, RunRequest(kwargs={"uri": "a"}))


def test_a_call_may_bring_its_own_key_policy_and_patience(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.trigger(spec)
    assert ledger.trigger(spec, RunRequest(key="other")).state is RunState.QUEUED
    queueing = RunRequest(overlap=OverlapPolicy.QUEUE_ALL, max_wait=timedelta(milliseconds=20))
    waits = ledger.trigger(spec, queueing)
    assert waits.state is RunState.WAITING
    wait_until(lambda: ledger.rescue() and not ledger.run(waits.id).state.is_open)
    assert ledger.run(waits.id).reason == "wait_expired"
    assert ledger.job(spec.name).counters["skipped:wait_expired"] == 1


def test_a_run_whose_patience_has_ended_is_not_promoted(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_one", max_wait="5ms")
    ledger.admit(ticks(spec, 0, 1))
    begin(ledger, run_id(spec, 0))
    until = ledger.now() + timedelta(milliseconds=6)
    wait_until(lambda: ledger.now() > until)
    assert ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED).next_up == ()
    assert states(ledger, spec) == ["succeeded", "skipped"]


@pytest.mark.parametrize("keys", [{}, {"max_wait": "1h"}])
def test_a_run_waits_on_when_it_is_looked_at_early(ledger: Ledger, keys: dict[str, str]) -> None:
    spec = job(ledger, overlap="queue_one", **keys)
    ledger.admit(ticks(spec, 0, 1))
    until = ledger.client.zscore(ledger.keys.leases, run_id(spec, 1))
    ledger.client.zadd(ledger.keys.leases, {run_id(spec, 1): 1})
    assert ledger.rescue() == ()
    assert states(ledger, spec) == ["queued", "waiting"]
    assert ledger.client.zscore(ledger.keys.leases, run_id(spec, 1)) == until


def test_a_requeued_run_gives_up_when_its_patience_has_ended(ledger: Ledger) -> None:
    spec = job(ledger, overlap="requeue", requeue_delay="10ms", max_wait="25ms", max_requeues=99)
    ledger.admit(ticks(spec, 0, 1))
    wait_until(lambda: ledger.rescue() and not ledger.run(run_id(spec, 1)).state.is_open)
    run = ledger.run(run_id(spec, 1))
    assert (run.reason, run.requeues < 5) == ("wait_expired", True)


def test_a_delayed_run_gets_its_place_when_its_time_has_come(ledger: Ledger) -> None:
    spec = job(ledger)
    run = ledger.trigger(spec, RunRequest(delay=timedelta(milliseconds=30)))
    assert (run.state, ledger.outbox()) == (RunState.WAITING, [])
    assert run.nominal_at - run.queued_at == timedelta(milliseconds=30)
    assert lock_is_free(ledger, spec)
    wait_until(lambda: ledger.rescue() and ledger.outbox() == [run.id])


def test_waiting_runs_are_not_overtaken_when_the_lock_is_given_back(ledger: Ledger) -> None:
    spec = job(ledger, key="shared", overlap="queue_all")
    other = job(ledger, "other", key="shared")
    ledger.admit(ticks(spec, 0, 1, 2))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert ledger.admit(ticks(other, 3))[0].placement is Placement.SKIP
    assert states(ledger, spec) == ["succeeded", "queued", "waiting"]


@pytest.mark.parametrize("stale", ["nightly@nowhere", ""])
def test_a_turn_that_no_waiting_run_can_take_goes_to_the_next(ledger: Ledger, stale: str) -> None:
    """As after a restart with a part of the data."""
    spec = job(ledger, overlap="queue_all")
    ledger.admit(ticks(spec, 0, 1))
    ledger.client.zadd(ledger.keys.waiting(spec.lock), {stale or run_id(spec, 0): 1})
    begin(ledger, run_id(spec, 0))
    finished = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert finished.next_up == (run_id(spec, 1),)
    assert states(ledger, spec) == ["succeeded", "queued"]
    assert not ledger.client.exists(ledger.keys.waiting(spec.lock))


def test_what_a_worker_promoted_is_left_to_it_to_publish(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    ledger.admit(ticks(spec, 0, 1))
    ledger.sent(dict.fromkeys(ledger.outbox(), "celery"))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert ledger.outbox() == []
    [(run, at)] = ledger.client.zrange(ledger.keys.outbox, 0, -1, withscores=True)
    assert (run, at <= ms_of(ledger.now() + HANDOVER_GRACE)) == (run_id(spec, 1), True)


def test_silent_holders_that_are_settled_one_after_the_other_give_a_run_one_slot(
    ledger: Ledger,
) -> None:
    spec = job(ledger, overlap="queue_all", max_running=3, on_crash="fail")
    ledger.admit(ticks(spec, 0, 1, 2, 3))
    for second in range(3):
        begin(ledger, run_id(spec, second), f"token-{second}")
    for second in (1, 2):
        lease_runs_out(ledger, spec, run_id(spec, second))
    ledger.rescue()
    begin(ledger, run_id(spec, 3), "token-3")
    for second in (0, 3):
        ledger.finish(run_id(spec, second), f"token-{second}", RunState.SUCCEEDED)
    placed = [admission.placement for admission in ledger.admit(ticks(spec, 4, 5, 6))]
    assert placed == [Placement.START] * 3


def test_who_ends_as_another_begins_is_not_beside_it(ledger: Ledger) -> None:
    for repetition in range(30):
        spec = job(ledger, f"job-{repetition}", overlap="queue_all", max_running=2, on_crash="fail")
        ledger.admit(ticks(spec, 0, 1, 2))
        for second in range(2):
            begin(ledger, run_id(spec, second), f"token-{second}")
        ledger.finish(run_id(spec, 1), "token-1", RunState.SUCCEEDED)
        begin(ledger, run_id(spec, 2), "token-2")
        lease_runs_out(ledger, spec, run_id(spec, 0))
        ledger.rescue()
        assert renew(ledger, run_id(spec, 0), "token-0") is LeaseState.LOST
        assert "overlaps" not in ledger.job(spec.name).counters


def test_a_delayed_run_whose_lock_is_held_waits_and_says_so(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_one")
    ledger.admit(ticks(spec, 0))
    run = ledger.trigger(spec, RunRequest(delay=timedelta(hours=1)))
    ledger.client.zadd(ledger.keys.delayed, {run.id: 1})
    assert ledger.rescue() == (Rescue("waiting", run.id, spec.name),)
