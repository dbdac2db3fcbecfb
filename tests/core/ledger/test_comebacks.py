"""A server that was restarted or a replica that was promoted: living runs come back first."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from supervisor.features.audit.step import audit
from supervisor.features.days.store import counts_of
from supervisor.job.run import Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import FollowUp, Placement
from supervisor.ledger.attempt import GrantedAttempt, LeaseState, Refusal, Refused, Work
from supervisor.ledger.job_record import HISTOGRAM_FIELDS
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import CallArguments
from supervisor.operate.question import question_of_run
from supervisor.operate.why import answer
from supervisor.schedule.ticks import PassedOver
from supervisor.testing import empty, lease_runs_out, server_changes
from supervisor.times import ms_of
from tests.damage import lose
from tests.jobs import (
    MIDNIGHT,
    admitted,
    at_work,
    begin,
    begun,
    granted_of,
    job,
    lock_is_free,
    renew,
    run_id,
    states,
    ticks,
)
from tests.waiting import wait_until


def work(spec: JobSpec, second: int = 0) -> Work:
    [tick] = ticks(spec, second)
    return Work(tick.run_id, spec.name, tick.nominal_at, spec.rules(), "worker")


def test_nothing_begins_for_a_leases_time_after_the_server_has_changed(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, lease_ttl="30s")
    server_changes(ledger)
    requested_at = ms_of(ledger.now())
    answer = ledger.begin(run_id(spec, 0), "token", "worker")
    assert answer == Refused(run_id(spec, 0), Refusal.GRACE)
    assert states(ledger, spec) == ["queued"]
    assert ledger.outbox() == []
    until = ledger.client.zscore(ledger.keys.outbox, run_id(spec, 0))
    assert requested_at - 1 <= until - 30_000 <= ms_of(ledger.now())
    ledger.acknowledge_server()
    begin(ledger, run_id(spec, 0))


def test_no_run_waits_in_vain_while_the_grace_holds_it_back(ledger: Ledger) -> None:
    spec = begun(ledger, overlap="queue_all", max_wait="1s", lease_ttl="30s")
    ledger.admit(ticks(spec, 1))
    lease_runs_out(ledger, run_id(spec, 1))
    server_changes(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert ledger.run(run_id(spec, 1)).state is RunState.QUEUED


def test_a_tick_behind_a_run_that_the_grace_holds_back_says_so(ledger: Ledger) -> None:
    spec = job(ledger, lease_ttl="30s")
    lose(ledger, ledger.keys.server)
    server_changes(ledger)
    ledger.admit(ticks(spec, 0, 1))
    skipped = ledger.run(run_id(spec, 1))
    assert (skipped.reason, skipped.blocked_by) == ("grace", run_id(spec, 0))
    reason = answer(question_of_run(ledger, run_id(spec, 1)))[0]
    assert "Redis was new, and nothing starts for a `lease_ttl` then" in reason


def test_a_tick_behind_a_run_that_is_to_begin_again_overlaps_in_the_grace_as_well(
    ledger: Ledger,
) -> None:
    spec = begun(ledger, lease_ttl="30s")
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    server_changes(ledger)
    [skipped] = ledger.admit(ticks(spec, 1))
    assert (skipped.placement, skipped.reason) == (Placement.SKIP, "overlap")


def test_a_fresh_ledger_on_a_server_that_ran_for_long_waits_for_nobody(ledger: Ledger) -> None:
    spec = job(ledger, lease_ttl="1s")
    lose(ledger, ledger.keys.server)
    ledger.admit(ticks(spec, 0))
    wait_until(lambda: ledger.client.info("server")["uptime_in_seconds"] > 1)
    begin(ledger, run_id(spec, 0))


def test_a_begin_that_a_promoted_replica_never_heard_of_is_made_good(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, ping_url="https://hc.example/1")
    # The worker knows that it began; the ledger does not.
    assert renew(ledger, run_id(spec, 0), has_begun=False) is LeaseState.NOT_BEGUN
    granted = granted_of(ledger)
    assert renew(ledger, run_id(spec, 0), granted=granted) is LeaseState.REASSERTED
    run: Run = ledger.run(run_id(spec, 0))
    assert (run.state, run.attempt) == (RunState.RUNNING, 1)
    assert ledger.outbox() == []
    assert isinstance(ledger.begin(run_id(spec, 0), "second copy", "worker"), Refused)
    # It counts as any other that began.
    record = ledger.job(spec.name)
    delays = ledger.client.hmget(ledger.keys.job(spec.name), HISTOGRAM_FIELDS["start_delay"][:-1])
    assert record.counters["started"] == sum(int(count or 0) for count in delays) == 1
    assert record.last_start_at == run.started_at
    [ping] = ledger.client.lrange(ledger.keys.to_send(f"ping {spec.name}"), 0, -1)
    assert (json.loads(ping)["run"], json.loads(ping)["kind"]) == (run.id, "start")


@pytest.mark.parametrize("keys", [{"serial": "one"}, {"key": "one"}])
def test_what_a_promoted_replica_gave_to_another_is_not_taken_back(
    ledger: Ledger, keys: dict[str, str]
) -> None:
    spec, other = job(ledger, **keys), job(ledger, "other", **keys)
    ledger.admit(ticks(spec, 0))
    if "key" in keys:
        lose(ledger, ledger.keys.lock_state(spec.lock), ledger.keys.lock(spec.lock))
    now = granted_of(ledger)
    granted = now._replace(fencing_token=now.fencing_token - 10_000)
    at_work(ledger, other, 0, "other")
    assert renew(ledger, run_id(spec, 0), granted=granted) is LeaseState.LOST
    assert ledger.run(run_id(spec, 0)).state is RunState.QUEUED
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(other, 0)
    assert ledger.job(spec.name).counters["overlaps"] == 1


def test_the_end_of_a_forgotten_attempt_counts(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    granted = granted_of(ledger)
    late = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED, granted=granted)
    run: Run = ledger.run(run_id(spec, 0))
    assert (late.ending, run.state, run.attempt) == ("ended", RunState.SUCCEEDED, 1)
    assert lock_is_free(ledger, spec)
    assert not ledger.client.zscore(ledger.keys.leases, run.id)


def test_a_body_is_asked_to_end_where_its_attempt_is_over(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    begin(ledger, run_id(spec, 0))
    granted = granted_of(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED, granted=granted)
    assert renew(ledger, run_id(spec, 0), granted=granted) is LeaseState.LOST
    assert renew(ledger, run_id(spec, 0), granted=granted, has_begun=False) is LeaseState.ENDED


def test_a_forgotten_attempt_that_ends_overlapped_with_what_began_since(ledger: Ledger) -> None:
    spec, other = (job(ledger, name, key="shared") for name in ("spec", "other"))
    ledger.admit(ticks(spec, 0))
    lose(ledger, ledger.keys.lock_state(spec.lock), ledger.keys.lock(spec.lock))
    now = granted_of(ledger)
    granted = now._replace(fencing_token=now.fencing_token - 10_000)
    at_work(ledger, other, 0, "other")
    late = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED, granted=granted)
    assert (late.ending, late.overlapped_with) == ("stale", run_id(other, 0))
    assert ledger.job(spec.name).counters["overlaps"] == 1


def test_a_begin_that_was_undone_is_no_reason_against_a_comeback(ledger: Ledger) -> None:
    spec, other = (job(ledger, name, serial="one") for name in ("spec", "other"))
    ledger.admit(ticks(spec, 0))
    now = granted_of(ledger)
    granted = now._replace(fencing_token=now.fencing_token - 10_000)
    at_work(ledger, other, 0, "other")
    ledger.undo_begin(run_id(other, 0), "other")
    assert renew(ledger, run_id(spec, 0), granted=granted) is LeaseState.REASSERTED
    assert "overlaps" not in ledger.job(spec.name).counters


def test_a_run_given_up_for_a_comeback_overlaps_with_it(ledger: Ledger) -> None:
    """Of three runs at work, where two may be: the ledger had lost its data when the last began."""
    keys = {"max_running": 2, "on_crash": "fail"}
    spec = job(ledger, **keys)
    first, second = (at_work(ledger, spec, n, f"token-{n}").granted for n in (0, 1))
    empty(ledger)
    job(ledger, since=MIDNIGHT + timedelta(seconds=1), **keys)
    assert ledger.restore(work(spec, 0), "token-0", first).state is LeaseState.REASSERTED
    at_work(ledger, spec, 2, "token-2")
    assert ledger.restore(work(spec, 1), "token-1", second).state is LeaseState.REASSERTED
    assert renew(ledger, run_id(spec, 0), "token-0", granted=first) is LeaseState.LOST
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(spec, 1)
    assert ledger.job(spec.name).counters["overlaps"] == 1


def test_an_attempt_without_a_record_overlaps_once(ledger: Ledger) -> None:
    """The ledger lost its data, and more began beside it than may; then others in their place."""
    spec = job(ledger, max_running=2)
    first = at_work(ledger, spec, 0, "token-0").granted
    empty(ledger)
    job(ledger, since=MIDNIGHT, max_running=2)
    for second in (1, 2, 3):
        at_work(ledger, spec, second, f"token-{second}")
        if second > 1:
            assert ledger.restore(work(spec, 0), "token-0", first).state is LeaseState.LOST
            ledger.finish(run_id(spec, second), f"token-{second}", RunState.SUCCEEDED)
    assert ledger.job(spec.name).counters["overlaps"] == 1


def crashed_and_begun_again(ledger: Ledger) -> tuple[JobSpec, GrantedAttempt]:
    """The server lost its data after a run had begun again, and that attempt came back.

    Three runs may be at work. What is known of the first attempt, whose worker is alive.
    """
    spec = job(ledger, max_running=3)
    first = at_work(ledger, spec, 0, "first").granted
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    second = begin(ledger, run_id(spec, 0), "second").granted
    empty(ledger)
    job(ledger, max_running=3)
    assert ledger.restore(work(spec), "second", second).state is LeaseState.REASSERTED
    return spec, first


def test_a_forgotten_attempt_overlaps_once_the_lock_is_full(
    ledger: Ledger,
) -> None:
    spec, first = crashed_and_begun_again(ledger)
    assert renew(ledger, run_id(spec, 0), "first", first) is LeaseState.LOST
    at_work(ledger, spec, 1, "third")
    assert renew(ledger, run_id(spec, 0), "first", first) is LeaseState.LOST
    assert "overlaps" not in ledger.job(spec.name).counters
    at_work(ledger, spec, 2, "fourth")
    assert renew(ledger, run_id(spec, 0), "first", first) is LeaseState.LOST
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(spec, 2)
    assert ledger.job(spec.name).counters["overlaps"] == 1


def test_the_late_end_of_a_forgotten_attempt_leaves_the_lock_alone(
    ledger: Ledger,
) -> None:
    spec, first = crashed_and_begun_again(ledger)
    before = ledger.client.hgetall(ledger.keys.lock_state(spec.lock))
    late = ledger.finish(run_id(spec, 0), "first", RunState.SUCCEEDED, granted=first)
    assert late.ending == "stale"
    assert ledger.client.hgetall(ledger.keys.lock_state(spec.lock)) == before


def test_messages_are_counted_anew_when_a_run_is_queued_again(ledger: Ledger) -> None:
    """One that had to make way for an attempt that came back."""
    spec = admitted(ledger, 0, overlap="queue_all")
    first = run_id(spec, 0)
    ledger.sent(dict.fromkeys(ledger.outbox(), "celery"))
    restored = ledger.restore(work(spec, 1), "token", granted_of(ledger))
    assert (restored.state, ledger.run(first).state) == (LeaseState.REASSERTED, "waiting")
    ledger.finish(run_id(spec, 1), "token", RunState.SUCCEEDED)
    assert (ledger.run(first).state, ledger.run(first).sent_at) == ("queued", None)
    ledger.sent({first: "celery"})
    assert ledger.run(first).sends == 1


def test_the_late_success_of_a_run_that_made_way_counts(ledger: Ledger) -> None:
    spec = begun(ledger, overlap="queue_all")
    first = run_id(spec, 0)
    lease_runs_out(ledger, first)
    ledger.rescue()
    ledger.restore(work(spec, 1), "other", granted_of(ledger))
    assert ledger.run(first).state is RunState.WAITING
    assert ledger.finish(first, "token", RunState.SUCCEEDED).ending == "ended"
    assert ledger.run(first).state is RunState.SUCCEEDED
    assert not ledger.client.exists(ledger.keys.waiting(spec.lock))


def test_an_end_of_which_nothing_is_known_is_stale(ledger: Ledger) -> None:
    spec = job(ledger)
    assert ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED).ending == "stale"


def test_a_run_that_made_way_takes_the_first_free_slot(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, max_running=2, overlap="queue_all")
    begin(ledger, run_id(spec, 0), "first")
    in_second_slot = granted_of(ledger)._replace(slot=2)
    restored = ledger.restore(work(spec, 2), "token", in_second_slot)
    made_way = ledger.run(run_id(spec, 1))
    assert (restored.state, made_way.state) == (LeaseState.REASSERTED, "waiting")
    ledger.finish(run_id(spec, 0), "first", RunState.SUCCEEDED)
    slots = [ledger.client.hget(ledger.keys.run(run_id(spec, n)), "slot") for n in (1, 2)]
    assert slots == ["1", "2"]


def test_a_run_that_makes_way_while_its_retry_is_not_due_is_due_as_before(ledger: Ledger) -> None:
    spec = begun(ledger, overlap="queue_all")
    first = run_id(spec, 0)
    ledger.retry(first, "token", timedelta(hours=1))
    due = ledger.client.zscore(ledger.keys.delayed, first)
    restored = ledger.restore(work(spec, 1), "other", granted_of(ledger))
    assert (restored.state, ledger.run(first).state) == (LeaseState.REASSERTED, "retrying")
    assert ledger.client.zscore(ledger.keys.delayed, first) == due


def test_a_parked_run_that_makes_way_waits_for_its_lock_alone(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all", serial="one")
    other = job(ledger, "other", serial="one")
    first = run_id(spec, 0)
    at_work(ledger, other, 0, "other")
    ledger.admit(ticks(spec, 0))
    assert isinstance(ledger.begin(first, "parked", "worker"), Refused)
    lease_runs_out(ledger, run_id(other, 0))
    restored = ledger.restore(work(spec, 1), "back", granted_of(ledger))
    assert (restored.state, ledger.run(first).state) == (LeaseState.REASSERTED, "waiting")
    lines = [
        ledger.client.zcard(ledger.keys.waiting(lock)) for lock in (spec.lock, spec.serial_lock)
    ]
    assert lines == [1, 0]


def test_a_restored_run_that_was_asked_for_leaves_the_ticks_alone(ledger: Ledger) -> None:
    spec = job(ledger)
    nominal = ticks(spec, 60)[0].nominal_at
    by_hand = Work(f"{spec.name}@manual-1", spec.name, nominal, spec.rules(), "worker")
    ledger.restore(by_hand, "token", granted_of(ledger))
    [admission] = ledger.admit(ticks(spec, 59))
    assert admission.blocked_by == by_hand.run_id


def test_a_tick_that_the_server_forgot_is_counted_when_emitted_again(ledger: Ledger) -> None:
    """What a server loses that is restarted with the data of a second ago."""
    spec = begun(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert audit(ledger, [spec], MIDNIGHT) == []
    ledger.restore(work(spec, 1), "later", granted_of(ledger))
    for _ in range(2):
        [again] = ledger.admit(ticks(spec, 1))
        assert again.placement is Placement.DUPLICATE
    ledger.finish(run_id(spec, 1), "later", RunState.SUCCEEDED)
    assert audit(ledger, [spec], MIDNIGHT) == []
    assert ledger.job(spec.name).counters["ticks"] == 2


@pytest.mark.parametrize(
    ("restored", "missed", "row"),
    [([1], 0, None), ([1, 4], 2, None), ([2], 3, 4), ([4], 3, 1), ([1], 3, 4)],
    ids=str,
)
def test_a_tick_that_the_server_forgot_is_not_missed_where_it_has_a_run(
    ledger: Ledger, restored: list[int], missed: int, row: int | None
) -> None:
    """Beat comes late to ticks of which workers have restored some runs."""
    spec = begun(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    for second in restored:
        ledger.restore(work(spec, second), f"token {second}", granted_of(ledger))
        ledger.finish(run_id(spec, second), f"token {second}", RunState.SUCCEEDED)
    last = len(restored) + missed
    [since], [until] = ticks(spec, 1), ticks(spec, last)
    span = PassedOver(
        spec, RunState.MISSED, "catchup", since.nominal_at, until.nominal_at, ticks=last
    )
    assert ledger.pass_over([span]) == ["passed"]
    assert {ledger.run(run_id(spec, second)).state for second in restored} == {RunState.SUCCEEDED}
    counters = ledger.job(spec.name).counters
    assert counters["ticks"] == 1 + last
    assert counters.get("missed:catchup", 0) == missed
    rows = [(run.id, run.ticks) for run in ledger.history(spec.name) if run.ticks > 1]
    assert rows == ([(run_id(spec, row), missed)] if row else [])
    assert (
        sum(
            of.get("missed", 0) for of in counts_of(ledger, spec.name, ledger.now().date()).values()
        )
        == missed
    )
    assert audit(ledger, [spec], until.nominal_at) == []


def test_a_follower_that_the_server_forgot_is_counted_when_it_is_due_again(ledger: Ledger) -> None:
    spec = job(ledger, every=None, after=["first"])
    run = work(spec).run_id
    assert ledger.restore(work(spec), "token", granted_of(ledger)).state is LeaseState.REASSERTED
    for _ in range(2):
        [again] = ledger.follow_up([FollowUp(spec, run, MIDNIGHT)])
        assert again.placement is Placement.DUPLICATE
    ledger.finish(run, "token", RunState.SUCCEEDED)
    assert ledger.job(spec.name).counters["triggered"] == 1


def test_a_tick_that_ended_and_is_history_no_more_is_not_begun_anew(ledger: Ledger) -> None:
    """Its worker was frozen meanwhile: another did the work, and many runs have followed."""
    spec = job(ledger, history=1)
    granted = at_work(ledger, spec, 0, "frozen").granted
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    begin(ledger, run_id(spec, 0), "second")
    ledger.finish(run_id(spec, 0), "second", RunState.SUCCEEDED)
    for second in (1, 2):
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)
    assert renew(ledger, run_id(spec, 0), "frozen") is LeaseState.UNKNOWN
    assert ledger.restore(work(spec), "frozen", granted).state is LeaseState.LOST
    assert lock_is_free(ledger, spec)


@pytest.mark.parametrize("code", ["", '{"name": "nightly", "task": "proj.nightly"}'])
def test_a_run_that_comes_back_makes_its_job_known_where_code_has_it(
    ledger: Ledger, code: str
) -> None:
    spec = job(ledger)
    asked = CallArguments(code=code)
    restored = ledger.restore(work(spec), "token", granted_of(ledger), asked)
    assert restored.state is LeaseState.REASSERTED
    assert (ledger.client.hget(ledger.keys.guarded, spec.name) or "") == code
