"""What nobody else brings forward: silent leases, waiters without a holder, late reports."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from celery import Celery

from supervisor.beat.admission_log import note_rescue
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import (
    AttemptPhase,
    Ending,
    Finished,
    LeaseState,
    Refusal,
    Refused,
    Rescue,
)
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import RUNS_PER_DISMISSAL
from supervisor.ledger.run_request import RunRequest
from supervisor.testing import lease_runs_out, server_changes
from supervisor.times import clock, ms_of
from tests.damage import lose, lose_lock, spoil, stray, tear
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
    with_messages,
)
from tests.waiting import wait_until


def lost(ledger: Ledger, **keys: object):  # type: ignore[no-untyped-def]
    """A job whose first run was begun and whose lease ran out."""
    spec = begun(ledger, **keys)
    lease_runs_out(ledger, run_id(spec, 0))
    return spec


def vanish(ledger: Ledger, spec: JobSpec, run: str) -> None:
    """The holder and its lock are gone without a trace, as after a restart with older data."""
    lock, state = ledger.keys.lock(spec.lock), ledger.keys.lock_state(spec.lock)
    lose(ledger, lock, state, ledger.keys.run(run))


def test_a_lock_key_that_vanished_before_its_time_is_put_back(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    lose_lock(ledger, spec)
    ends_at = ledger.client.zscore(ledger.keys.leases, run_id(spec, 0))
    [blocked] = ledger.admit(ticks(spec, 1))
    assert blocked.blocked_by == run_id(spec, 0)
    assert blocked.rescues == (Rescue("reasserted", run_id(spec, 0), spec.name),)
    assert not lock_is_free(ledger, spec)
    assert ledger.client.zscore(ledger.keys.leases, run_id(spec, 0)) == ends_at


def test_a_queued_run_whose_lock_key_vanished_begins(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    lose_lock(ledger, spec)
    begin(ledger, run_id(spec, 0))


@pytest.mark.parametrize("is_retried", [False, True])
def test_a_run_that_a_new_server_holds_back_has_its_whole_deadline_again(
    ledger: Ledger, *, is_retried: bool
) -> None:
    spec = admitted(ledger, 0, start_deadline="1h", lease_ttl="30s")
    run = run_id(spec, 0)
    if is_retried:
        begin(ledger, run)
        ledger.retry(run, "token", timedelta(hours=1))
    lease_runs_out(ledger, run)
    server_changes(ledger)
    now = ms_of(ledger.now())
    assert ledger.rescue() == (Rescue("prolonged", run, spec.name),)
    assert ledger.client.zscore(ledger.keys.leases, run) >= now + 3_600_000


def test_a_run_that_no_worker_took_says_that_its_start_deadline_passed(ledger: Ledger) -> None:
    """Not that it expires, which is later."""
    run = ledger.trigger(job(ledger), RunRequest(expires=timedelta(hours=9))).id
    lease_runs_out(ledger, run)
    assert [rescue.kind for rescue in ledger.rescue()] == ["expired"]
    assert ledger.run(run).reason == "start deadline passed"


def test_what_is_left_of_a_run_without_a_record_is_looked_at_once(ledger: Ledger) -> None:
    stray(ledger, ledger.keys.leases, "nightly@gone")
    assert ledger.rescue() == ()
    assert not ledger.client.exists(ledger.keys.leases)


def test_a_run_whose_message_was_just_sent_is_left_alone(ledger: Ledger, app: Celery) -> None:
    spec = job(ledger)
    with_messages(ledger, app)
    ledger.admit(ticks(spec, 0))
    assert ledger.run(run_id(spec, 0)).sends == 1
    assert ledger.client.zscore(ledger.keys.leases, run_id(spec, 0)) > ms_of(ledger.now())
    assert ledger.rescue() == ()


@pytest.mark.parametrize("serial", [False, "reports"])
def test_a_waiting_run_whose_lock_nobody_holds_is_promoted(
    ledger: Ledger, serial: bool | str
) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_one", serial=serial)
    vanish(ledger, spec, run_id(spec, 0))
    ledger.rescue()
    assert run_id(spec, 1) in ledger.outbox()


def test_a_run_that_the_next_of_its_call_replaces_leaves_no_lease(
    ledger: Ledger, app: Celery
) -> None:
    spec = job(ledger, overlap="replace")
    with_messages(ledger, app)
    ledger.admit(ticks(spec, 0, 1))
    assert states(ledger, spec) == ["replaced", "queued"]
    assert ledger.client.zrange(ledger.keys.leases, 0, -1) == [run_id(spec, 1)]


def test_a_tick_waits_behind_none_once_the_waiting_run_was_promoted(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_one")
    vanish(ledger, spec, run_id(spec, 0))
    [third] = ledger.admit(ticks(spec, 2))
    assert (third.placement, third.blocked_by) == (Placement.WAIT, run_id(spec, 1))


def test_a_tick_behind_waiting_runs_that_are_to_be_ended_names_the_first(ledger: Ledger) -> None:
    """One call ends some of them, so that others have their turn."""
    spec = admitted(ledger, 0, overlap="queue_all", max_waiting=1_000, max_wait="10ms")
    ledger.admit(ticks(spec, *range(1, RUNS_PER_DISMISSAL + 2)))
    last = run_id(spec, RUNS_PER_DISMISSAL + 1)
    over_at = ledger.run(last).queued_at + timedelta(milliseconds=11)
    wait_until(lambda: ledger.now() > over_at)
    vanish(ledger, spec, run_id(spec, 0))
    [late] = ledger.admit(ticks(spec, 1_000))
    assert (late.placement, late.blocked_by) == (Placement.WAIT, last)


def test_a_parked_run_is_published_again_once_nobody_works_its_queue(ledger: Ledger) -> None:
    first, second = (job(ledger, name, serial="reports") for name in ("first", "second"))
    ledger.admit(ticks(first, 0) + ticks(second, 0))
    ledger.sent(dict.fromkeys(ledger.outbox(), "celery"))
    begin(ledger, run_id(first, 0))
    ledger.begin(run_id(second, 0), "other", "worker")
    assert (ledger.rescue(), ledger.outbox()) == ((), []), "it is worked"
    # The holder is gone without a trace, as after a restart with older data.
    serial = first.rules().serial
    lose_lock(ledger, first)
    lose(ledger, ledger.keys.lock(serial), ledger.keys.run(run_id(first, 0)))
    assert Rescue("promoted", run_id(second, 0), second.name) in ledger.rescue()
    assert ledger.outbox() == [run_id(second, 0)]
    ledger.sent({run_id(second, 0): "celery"})
    assert run_id(second, 0) in ledger.client.zrange(ledger.keys.sent, 0, -1)


def test_a_run_whose_workers_die_max_crashes_times_is_lost(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, on_crash="rerun", max_crashes=3)
    kinds = []
    for attempt in range(3):
        begin(ledger, run_id(spec, 0), f"token {attempt}")
        lease_runs_out(ledger, run_id(spec, 0))
        kinds += [rescue.kind for rescue in ledger.rescue()]
    assert kinds == ["rescued", "rescued", "lost"]
    assert states(ledger, spec) == ["lost"]


def test_a_broken_record_does_not_keep_others_from_being_rescued(ledger: Ledger) -> None:
    broken, whole = (job(ledger, name) for name in ("broken", "whole"))
    for spec in (broken, whole):
        at_work(ledger, spec, 0)
        lease_runs_out(ledger, run_id(spec, 0))
    tear(ledger, run_id(broken, 0))
    kinds = {rescue.run_id: rescue.kind for rescue in ledger.rescue()}
    assert kinds == {run_id(broken, 0): "failed", run_id(whole, 0): "rescued"}
    assert ledger.rescue() == ()


def test_a_run_whose_record_is_no_record_is_reported_without_its_job(ledger: Ledger) -> None:
    spoil(ledger, ledger.keys.run("nightly@text"))
    stray(ledger, ledger.keys.leases, "nightly@text")
    assert ledger.rescue() == (Rescue("failed", "nightly@text", ""),)
    assert ledger.rescue() == (), "it is looked at again a minute later"


def test_an_admission_says_which_silent_runs_it_rescued(ledger: Ledger) -> None:
    spec = lost(ledger)
    [admission] = ledger.admit(ticks(spec, 1))
    assert admission.rescues == (Rescue("rescued", run_id(spec, 0), spec.name),)


def test_an_overlap_lasts_from_the_successors_begin_to_the_late_report(ledger: Ledger) -> None:
    spec = lost(ledger, on_crash="fail", overlap="queue_all")
    ledger.rescue()
    ledger.admit(ticks(spec, 1, 2))
    began_at = ledger.now()
    for second in (1, 2):
        begin(ledger, run_id(spec, second), f"successor-{second}")
        until = ledger.now() + timedelta(milliseconds=20)
        wait_until(lambda until=until: ledger.now() > until)  # type: ignore[misc]
        ledger.finish(run_id(spec, second), f"successor-{second}", RunState.SUCCEEDED)
    late = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert late.overlapped_with == run_id(spec, 1)
    assert ledger.run(run_id(spec, 1)).overlapped_with == run_id(spec, 0)
    counters = ledger.job(spec.name).counters
    assert counters["overlaps"] == 1
    assert 40 <= counters["overlap_ms"] <= (ledger.now() - began_at) / timedelta(milliseconds=1)
    # Nothing of it is at work any more, whatever its worker's heartbeat asks for.
    assert renew(ledger, run_id(spec, 0)) is LeaseState.ENDED
    assert ledger.job(spec.name).counters == counters


def test_an_overlap_grows_while_the_late_run_goes_on(ledger: Ledger) -> None:
    spec = lost(ledger, on_crash="fail", overlap="queue_all")
    ledger.rescue()
    at_work(ledger, spec, 1, "successor")
    lengths = []
    for _ in range(2):
        until = ledger.now() + timedelta(milliseconds=20)
        wait_until(lambda until=until: ledger.now() > until)  # type: ignore[misc]
        assert renew(ledger, run_id(spec, 0)) is LeaseState.LOST
        lengths.append(ledger.job(spec.name).counters["overlap_ms"])
    assert lengths[0] >= 20
    assert lengths[1] >= lengths[0] + 20
    assert ledger.job(spec.name).counters["overlaps"] == 1


def test_an_attempt_before_the_last_ends_nothing(ledger: Ledger) -> None:
    """Both were given up, and the run waits for its third."""
    run = run_id(lost(ledger), 0)
    ledger.rescue()
    begin(ledger, run, "second")
    lease_runs_out(ledger, run)
    ledger.rescue()
    assert ledger.finish(run, "token", RunState.SUCCEEDED).ending == "stale"
    assert ledger.run(run).state is RunState.QUEUED
    assert ledger.finish(run, "second", RunState.SUCCEEDED).ending == "ended"


def test_beside_a_successor_that_was_given_up_as_well_both_overlap(ledger: Ledger) -> None:
    spec = lost(ledger, on_crash="fail", overlap="queue_all")
    ledger.rescue()
    at_work(ledger, spec, 1, "token-1")
    lease_runs_out(ledger, run_id(spec, 1))
    ledger.rescue()
    at_work(ledger, spec, 2, "token-2")
    for second, token in ((0, "token"), (1, "token-1")):
        late = ledger.finish(run_id(spec, second), token, RunState.SUCCEEDED)
        assert late.overlapped_with == run_id(spec, second + 1)
    assert ledger.job(spec.name).counters["overlaps"] == 2


@pytest.mark.parametrize(
    ("on_crash", "ending"), [("rerun", Ending.RESCUED), ("fail", Ending.ENDED)]
)
def test_who_reports_a_dead_process_publishes_its_run_again(
    ledger: Ledger, on_crash: str, ending: Ending
) -> None:
    spec = job(ledger, on_crash=on_crash)
    at_work(ledger, spec, 0, "token")
    next_up = (run_id(spec, 0),) if ending is Ending.RESCUED else ()
    assert ledger.report_dead(run_id(spec, 0), "token", "died") == Finished(ending, next_up)


def test_a_process_found_dead_is_no_overlap_with_those_who_came_after(ledger: Ledger) -> None:
    spec = lost(ledger, on_crash="fail")
    ledger.rescue()
    at_work(ledger, spec, 1, "successor")
    assert ledger.report_dead(run_id(spec, 0), "token", "died").ending is Ending.STALE
    counters = ledger.job(spec.name).counters
    assert (counters["leases_lost"], counters.get("overlaps")) == (1, None)


def test_a_retry_that_comes_too_late_expires_and_is_not_placed_again(ledger: Ledger) -> None:
    first, late = job(ledger, "first"), job(ledger, "late", overlap="queue_one")
    for spec in (first, late):
        at_work(ledger, spec, 0)
    ledger.admit(ticks(late, 1))
    ledger.retry(run_id(late, 0), "token", timedelta())
    # Beat was away for longer than either is held, and looks at one run of a kind now.
    lease_runs_out(ledger, run_id(first, 0))
    lease_runs_out(ledger, run_id(late, 0))
    assert ledger.rescue(1) == (
        Rescue("rescued", run_id(first, 0), first.name),
        Rescue("expired", run_id(late, 0), late.name),
        Rescue("promoted", run_id(late, 1), late.name),
    )
    assert states(ledger, late) == ["expired", "queued"]
    counters = ledger.job(late.name).counters
    assert (counters["finished:expired"], counters["ticks"]) == (1, 2)
    assert ledger.outbox() == [run_id(first, 0), run_id(late, 1)]


def test_beat_has_a_word_for_a_run_whose_worker_died_as_it_was_timed_out(ledger: Ledger) -> None:
    spec = admitted(ledger, 1)
    begin(ledger, run_id(spec, 1))
    ledger.note_ending(run_id(spec, 1), "token", RunState.TIMED_OUT, "hard time limit")
    lease_runs_out(ledger, run_id(spec, 1))
    rescues = ledger.rescue()
    assert rescues == (Rescue("timed_out", run_id(spec, 1), spec.name),)
    note_rescue(rescues[0])


# A run that was given up says late since when its work was over: till then it may overlap

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


@pytest.mark.parametrize("begun", [AttemptPhase.OVER, AttemptPhase.UNKNOWN])
def test_a_heartbeat_makes_no_overlap_of_what_may_be_over(
    ledger: Ledger, begun: AttemptPhase
) -> None:
    spec = followed(ledger, 50)
    [renewal] = ledger.renew([(run_id(spec, 0), "token", begun, None)])
    assert (renewal.state, renewal.detail) == (LeaseState.LOST, None)
    assert "overlaps" not in ledger.job(spec.name).counters
    assert with_success(ledger, run_id(spec, 0), clock() - 60).overlapped_with is None


def test_what_a_heartbeat_saw_at_work_is_measured_on_from_there(ledger: Ledger) -> None:
    spec = followed(ledger, 50)
    [renewal] = ledger.renew([(run_id(spec, 0), "token", AttemptPhase.AT_WORK, None)])
    assert (renewal.state, renewal.detail) == (LeaseState.LOST, run_id(spec, 1))
    seen = ledger.job(spec.name).counters["overlap_ms"]
    with_success(ledger, run_id(spec, 0), clock() - 60)
    counters = ledger.job(spec.name).counters
    assert (counters["overlaps"], counters["overlap_ms"]) == (1, seen)


# Runs of a serial queue whose lease ran out: the queue is never worked by two that are told so


@pytest.fixture
def runs(ledger: Ledger) -> tuple[str, str]:
    """Two of different jobs on one queue; the first has begun, and its lease ran out unnoticed."""
    specs = [job(ledger, name, serial="reports") for name in ("first", "second")]
    for spec in specs:
        ledger.admit(ticks(spec, 1))
    first, second = (run_id(spec, 1) for spec in specs)
    begin(ledger, first, "silent")
    assert ledger.begin(second, "early", "worker") == Refused(second, Refusal.PARKED, first)
    lease_runs_out(ledger, first)
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
    lease_runs_out(ledger, first)
    ledger.rescue()
    begin(ledger, second)
    for counted in (second, None):  # it is logged once
        [renewal] = ledger.renew([(first, "silent", True, None)])
        assert (renewal.state, renewal.detail) == (LeaseState.LOST, counted)
    assert ledger.job("first").counters["overlaps"] == 1
    assert ledger.run(first).overlapped_with == second
    assert ledger.run(second).overlapped_with == first
    assert "overlaps" not in ledger.job("second").counters


def test_a_silent_run_is_rescued_before_another_works_its_queue(
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
    begin(ledger, f"{run}~a", "silent")
    lease_runs_out(ledger, f"{run}~a")
    answer = ledger.begin(f"{run}~b", "token", "worker")
    assert answer == Refused(f"{run}~b", Refusal.DUPLICATE, "cancelled")
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
        [renewal] = ledger.renew([(first, "silent", True, None)])
        assert (renewal.state, renewal.detail) == (LeaseState.REASSERTED, second)
    else:
        assert ledger.finish(first, "silent", RunState.SUCCEEDED).overlapped_with == second
        assert ledger.run(first).state is RunState.SUCCEEDED
    assert ledger.job("first").counters["overlaps"] == 1
    assert ledger.run(first).overlapped_with == second
