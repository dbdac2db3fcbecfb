"""Runs of several steps: stage by stage, every step and item once, one end."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.job.steps import ITEMS_AT_ONCE
from supervisor.ledger.attempt import Cancellation, Ending, LeaseState, Refusal, Refused
from supervisor.ledger.ledger import RUNS_PER_RESCUE, Ledger
from supervisor.ledger.limits import ITEMS_PER_END, ITEMS_PER_FILL, LARGEST_KEPT_PARAM
from supervisor.ledger.run_request import RunRequest
from supervisor.sending.messages import assignments
from supervisor.testing import lease_runs_out, server_changes
from supervisor.times import ms_of
from tests.core.ledger.test_comebacks import work
from tests.damage import lose, lose_field, lose_run, runs_out_soon, stray, tear
from tests.jobs import (
    MIDNIGHT,
    begin,
    granted_of,
    job,
    lock_is_free,
    remove,
    renew,
    run_id,
    states,
    ticks,
)

STEPS = (
    {"task": "proj.extract", "priority": 3},
    {"task": "proj.scan", "priority": 3},
    {"task": "proj.convert", "priority": 2},
    {"task": "proj.index", "priority": 1},
)


def pipeline(ledger: Ledger, steps: Any = STEPS, **keys: Any) -> JobSpec:
    return job(ledger, task=None, steps=steps, **keys)


@pytest.fixture
def spec(ledger: Ledger) -> JobSpec:
    return pipeline(ledger)


@pytest.fixture
def run(ledger: Ledger, spec: JobSpec) -> str:
    ledger.admit(ticks(spec, 1))
    return run_id(spec, 1)


def open_steps(ledger: Ledger, run: str) -> list[str]:
    return sorted(below.partition("~")[2] for below in ledger.steps.below([run]))


def succeed(ledger: Ledger, run: str, step: str, **returned: Any) -> Any:
    place = f"{run}~{step}"
    begin(ledger, place, place)
    return ledger.finish(place, place, RunState.SUCCEEDED, returned=returned)


def fail(ledger: Ledger, run: str, step: str) -> Any:
    begin(ledger, f"{run}~{step}", step)
    return ledger.finish(f"{run}~{step}", step, RunState.FAILED, "ValueError: no")


def params(ledger: Ledger, run: str) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in ledger.steps.params(run).items()}


def test_a_step_that_fails_says_so_in_the_log_of_its_run(ledger: Ledger, run: str) -> None:
    fail(ledger, run, "extract")
    [line] = ledger.reports.lines(run)
    found = (line.step, line.attempt, line.number, line.text)
    assert found == ("extract", 1, 0, "failed: ValueError: no")


def test_the_run_begins_with_its_first_step(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}~extract")
    assert ledger.run(run).state is RunState.RUNNING
    begin(ledger, f"{run}~scan", "other")
    counters = ledger.job(spec.name).counters
    assert (counters["started"], counters["ticks"]) == (1, 1)


def test_what_a_stage_returns_is_handed_to_the_next(ledger: Ledger) -> None:
    spec = pipeline(ledger, params={"tree": ".", "depth": 1})
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    succeed(ledger, run, "extract", files=["a", "b"], depth=2)
    assert params(ledger, run) == {"tree": ".", "depth": 1}
    succeed(ledger, run, "scan", sizes={})
    assert params(ledger, run) == {"tree": ".", "depth": 2, "files": ["a", "b"], "sizes": {}}


@pytest.mark.parametrize("order", ["abc", "cab"])
def test_of_several_that_return_the_same_the_last_named_holds(ledger: Ledger, order: str) -> None:
    spec = pipeline(ledger, [{"task": f"proj.{name}", "priority": 1} for name in "abc"])
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    for step in order:
        succeed(ledger, run, step, best=step)
    assert params(ledger, run) == {"best": "c"}
    assert ledger.client.hget(ledger.keys.run(run), "conflict:best") == "a,b,c"


def test_a_failed_step_ends_the_run(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}~scan", "scan")
    fail(ledger, run, "extract")
    assert ledger.run(run).state is RunState.RUNNING
    ledger.finish(f"{run}~scan", "scan", RunState.SUCCEEDED)
    ended = ledger.run(run)
    assert (ended.state, ended.error_step) == (RunState.FAILED, "extract")
    assert ended.reason == "step extract failed: ValueError: no"
    assert lock_is_free(ledger, spec)


def test_a_step_whose_worker_died_is_run_again(ledger: Ledger, spec: JobSpec, run: str) -> None:
    begin(ledger, f"{run}~extract", "first")
    lease_runs_out(ledger, f"{run}~extract")
    assert [rescue.kind for rescue in ledger.rescue()] == ["rescued"]
    second = begin(ledger, f"{run}~extract", "second")
    assert second.attempt == 2
    assert renew(ledger, f"{run}~extract", "first") is LeaseState.LOST
    assert ledger.job(spec.name).counters["overlaps"] == 1
    assert ledger.finish(f"{run}~extract", "first", RunState.SUCCEEDED).ending is Ending.STALE


def test_a_step_that_comes_back_overlaps_with_its_attempt_before(
    ledger: Ledger, spec: JobSpec, run: str
) -> None:
    """A promoted replica had not heard of the crash between the two."""
    step = f"{run}~extract"
    begin(ledger, step, "first")
    second = granted_of(ledger, number=2)
    assert renew(ledger, step, "second", second) is LeaseState.REASSERTED
    assert renew(ledger, step, "first") is LeaseState.LOST
    assert ledger.job(spec.name).counters["overlaps"] == 1


def lasts(ledger: Ledger, run: str) -> tuple[int, int]:
    """For how many ms the run keeps its lock, by the lock and by the index of leases."""
    now, lock = ms_of(ledger.now()), ledger.keys.lock(run.partition("@")[0])
    return ledger.client.pttl(lock), ledger.client.zscore(ledger.keys.leases, run) - now


@pytest.mark.parametrize("lost", ["", "token"], ids=["whole", "token lost"])
def test_a_step_that_renews_its_lease_renews_that_of_its_run(ledger: Ledger, lost: str) -> None:
    spec = pipeline(ledger, lease_ttl="10m")
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    begin(ledger, f"{run}~extract")
    runs_out_soon(ledger, ledger.keys.lock(spec.lock))
    stray(ledger, ledger.keys.leases, **{run: ms_of(ledger.now()) + 5_000})
    lose_field(ledger, ledger.keys.run(run), lost)
    assert renew(ledger, f"{run}~extract") is LeaseState.RENEWED
    shorter, longer = sorted(lasts(ledger, run))
    assert 600_000 < shorter <= longer < 1_200_000, "a little longer than its step's"
    token = ledger.client.hget(ledger.keys.run(run), "token") or ""
    assert ledger.client.get(ledger.keys.lock(spec.lock)) == token


def test_a_step_renews_the_slot_that_its_run_holds(ledger: Ledger) -> None:
    spec = pipeline(ledger, lease_ttl="10m", max_running=2)
    ledger.admit(ticks(spec, 1, 2))
    run, slots = run_id(spec, 2), [ledger.keys.lock(spec.lock), f"{ledger.keys.lock(spec.lock)}:2"]
    begin(ledger, f"{run}~extract")
    runs_out_soon(ledger, *slots)
    stray(ledger, ledger.keys.leases, **{run: ms_of(ledger.now()) + 5_000})
    renew(ledger, f"{run}~extract")
    first, second = map(ledger.client.pttl, slots)
    assert first <= 5_000 < 600_000 < second


def test_a_run_keeps_its_lock_while_another_of_its_steps_may_be_queued(ledger: Ledger) -> None:
    spec = pipeline(ledger, STEPS[:2], start_deadline="10m", lease_ttl="5s")
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    begin(ledger, f"{run}~extract")
    renew(ledger, f"{run}~extract")
    assert min(lasts(ledger, run)) > 590_000


def test_a_run_that_is_stuck_between_stages_is_mended(ledger: Ledger, run: str) -> None:
    """No function leaves one; a server that lost its last writes may."""
    succeed(ledger, run, "extract")
    lose_run(ledger, f"{run}~scan")
    lease_runs_out(ledger, run)
    ledger.rescue()
    assert open_steps(ledger, run) == ["convert"]


def test_a_run_none_of_whose_steps_has_begun_lives_as_long_as_they_do(
    ledger: Ledger, run: str
) -> None:
    lease_runs_out(ledger, run)
    assert [rescue.kind for rescue in ledger.rescue()] == ["reasserted"]
    succeed(ledger, run, "extract")


def test_what_is_left_of_an_ended_run_is_looked_at_once(ledger: Ledger, run: str) -> None:
    fail(ledger, run, "extract")
    stray(ledger, ledger.keys.leases, run)
    assert ledger.rescue() == ()
    assert ledger.client.zscore(ledger.keys.leases, run) is None


def test_a_batch_whose_items_vanished_fails(ledger: Ledger) -> None:
    place = batch(ledger, items=3)
    begin(ledger, f"{place}#0", "token")
    for item in range(3):
        lose_run(ledger, f"{place}#{item}")
    lease_runs_out(ledger, run_of(place))
    ledger.rescue()
    assert ledger.run(place).state is RunState.FAILED
    assert ledger.run(run_of(place)).state is RunState.FAILED


def test_an_item_that_nothing_brings_forward_is_rescued(ledger: Ledger) -> None:
    place = batch(ledger, items=2)
    lose(ledger, ledger.keys.leases)
    lease_runs_out(ledger, run_of(place))
    ledger.rescue()
    ledger.rescue()
    assert (
        ledger.run(run_of(place)).reason
        == "step words failed: item 0 expired: start deadline passed"
    )


def test_an_edit_does_not_change_a_run_that_is_on_its_way(ledger: Ledger, run: str) -> None:
    pipeline(ledger, STEPS[:1])
    for step in ("extract", "scan", "convert"):
        succeed(ledger, run, step)
    assert open_steps(ledger, run) == ["index"]


def test_what_belongs_to_an_ended_run_expires(ledger: Ledger) -> None:
    longest = "x" * (LARGEST_KEPT_PARAM - len('""'))
    params_of_it = {"tree": ".", "long": longest, "too_long": longest + "x"}
    spec = pipeline(ledger, STEPS[2:], params=params_of_it)
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    for step in ("convert", "index"):
        succeed(ledger, run, step)
    keys = list(ledger.client.scan_iter(f"*{run}*"))
    assert len(keys) == 4
    assert all(ledger.client.ttl(key) > 0 for key in keys)
    dropped = {"too_long": "(dropped when the run ended)"}
    assert params(ledger, run) == params_of_it | dropped


# Steps that are fanned out over a list: each item once, one end, bounded records


def batch(ledger: Ledger, items: int = 3, begun: bool = True, **keys: Any) -> str:
    """Id of the batch of a run that has been admitted, its items brought."""
    steps = (
        {"task": "proj.words", "priority": 2, "foreach": "files", **keys},
        {"task": "proj.index", "priority": 1},
    )
    spec = job(ledger, task=None, steps=steps, params={"files": list(range(items))})
    ledger.admit(ticks(spec, 1))
    place = f"{run_id(spec, 1)}~words"
    if begun:
        expanded(ledger, place, list(range(items)))
    return place


def expanded(ledger: Ledger, place: str, items: list[int]) -> list[str]:
    """As whoever publishes them: portion by portion, and all that may be open."""
    opened = portion = ledger.steps.expand(place, items)
    while portion:
        assert len(portion) <= ITEMS_PER_FILL
        portion = ledger.steps.fill(place)
        assert not {*portion} & {*ledger.outbox()}, "the caller publishes them"
        opened = opened + portion
    return opened


def run_of(place: str) -> str:
    return place.partition("~")[0]


def open_items(ledger: Ledger, place: str) -> list[int]:
    return sorted(int(below.partition("#")[2]) for below in ledger.steps.below([place]))


def end(ledger: Ledger, place: str, item: int, outcome: RunState = RunState.SUCCEEDED) -> Any:
    begin(ledger, f"{place}#{item}", f"token {item}")
    return ledger.finish(
        f"{place}#{item}", f"token {item}", outcome, "no" * (outcome != "succeeded")
    )


def item_states(ledger: Ledger, place: str) -> str:
    return str(ledger.client.get(ledger.keys.states(place)))


def counts(ledger: Ledger, place: str) -> dict[str, int]:
    record: dict[str, int] = json.loads(ledger.steps.params(run_of(place))["words"])
    return record


def test_a_batch_is_published_until_it_has_its_items(ledger: Ledger) -> None:
    place = batch(ledger, begun=False)
    assert ledger.outbox() == [place]
    assert len(ledger.steps.expand(place, [7, 8, 9])) == 3
    assert ledger.outbox() == []
    assert ledger.steps.items([f"{place}#1"]) == {f"{place}#1": (8,)}


def test_a_batch_ends_once_with_its_last_item(ledger: Ledger) -> None:
    place = batch(ledger)
    for item in (2, 0):
        assert end(ledger, place, item).to_publish == ()
    assert ledger.steps.below([run_of(place)]) == [place]
    assert end(ledger, place, 1).to_publish == (f"{run_of(place)}~index",)
    assert ledger.steps.below([run_of(place)]) == [f"{run_of(place)}~index"]
    assert counts(ledger, place) == {"total": 3, "succeeded": 3, "failed": 0}


def test_a_second_message_of_an_item_that_ended_well_is_refused(ledger: Ledger) -> None:
    """Of such an item nothing is kept."""
    place = batch(ledger)
    end(ledger, place, 0)
    again = ledger.begin(f"{place}#0", "again", "worker")
    assert again == Refused(f"{place}#0", Refusal.DUPLICATE, "succeeded")
    unknown = ledger.begin("nightly@gone", "token", "worker")
    assert unknown == Refused("nightly@gone", Refusal.UNKNOWN, None)


def test_a_batch_of_one_item_has_its_state(ledger: Ledger) -> None:
    place = batch(ledger, items=1)
    assert item_states(ledger, place) == "."
    assert end(ledger, place, 0).to_publish == (f"{run_of(place)}~index",)
    assert counts(ledger, place) == {"total": 1, "succeeded": 1, "failed": 0}


def test_a_batch_that_has_ended_is_not_ended_again_by_an_item(ledger: Ledger) -> None:
    """No function leaves one open below it; a server that lost its last writes may."""
    place = batch(ledger, items=1)
    tear(ledger, place, state="failed", finished="1")
    end(ledger, place, 0)
    assert ledger.run(place).state is RunState.FAILED
    assert open_steps(ledger, run_of(place)) == ["words"]


def test_items_are_queued_in_portions_as_there_is_room_for_one(ledger: Ledger) -> None:
    place = batch(ledger, items=ITEMS_AT_ONCE + ITEMS_PER_FILL + 7)
    for item in range(ITEMS_PER_FILL - 1):
        assert end(ledger, place, item).to_publish == ()
    assert len(end(ledger, place, ITEMS_PER_FILL - 1).to_publish) == ITEMS_PER_FILL
    assert len(open_items(ledger, place)) == ITEMS_AT_ONCE
    ends = [end(ledger, place, item) for item in open_items(ledger, place)]
    assert sum(len(ended.to_publish) for ended in ends) == 7
    assert open_items(ledger, place) == list(range(ITEMS_AT_ONCE + 100, ITEMS_AT_ONCE + 107))


def test_a_publisher_that_dies_in_between_leaves_the_rest_to_the_workers(ledger: Ledger) -> None:
    place = batch(ledger, items=3 * ITEMS_PER_FILL, begun=False)
    assert len(ledger.steps.expand(place, list(range(3 * ITEMS_PER_FILL)))) == ITEMS_PER_FILL
    assert len(end(ledger, place, 0).to_publish) == ITEMS_PER_FILL


def test_an_item_that_began_and_ended_as_most_do_is_as_any_other(ledger: Ledger) -> None:
    """What the ordinary case leaves behind, for which there are functions of its own."""
    place = batch(ledger, items=3)
    begin(ledger, f"{place}#0", "token 0")
    end(ledger, place, 1)
    assert ledger.renew([(f"{place}#1", "token 1", True, None)])[0].state is LeaseState.ENDED
    again = begin(ledger, f"{place}#2", "token 2")
    assert again == begin(ledger, f"{place}#2", "token 2"), "the reply to the first was lost"
    run = ledger.run(f"{place}#2")
    assert (run.state, run.attempt, run.sends) == (RunState.RUNNING, 1, 0)
    assert run.fencing_token == again.fencing_token
    assert ledger.client.zscore(ledger.keys.leases, f"{place}#2")
    assert ledger.outbox() == []
    ledger.finish(f"{place}#2", "another", RunState.SUCCEEDED)
    assert open_items(ledger, place) == [0, 2]


def test_a_failed_item_fails_its_batch_and_the_rest_is_left(ledger: Ledger) -> None:
    place = batch(ledger, items=5, max_parallel=3)
    begin(ledger, f"{place}#0", "token 0")
    end(ledger, place, 1, RunState.FAILED)
    assert open_items(ledger, place) == [0]
    ledger.finish(f"{place}#0", "token 0", RunState.SUCCEEDED)
    assert ledger.run(place).reason == "item 1 failed: no"
    ended = ledger.run(run_of(place))
    assert (ended.state, ended.error_step) == (RunState.FAILED, "words")
    assert item_states(ledger, place) == "sfc.."


@pytest.mark.parametrize(
    ("keys", "failing", "outcome"),
    [
        ({"on_item_failure": "ignore"}, 4, "succeeded"),
        ({"on_item_failure": "threshold", "max_failed": 1}, 1, "succeeded"),
        ({"on_item_failure": "threshold", "max_failed": 1}, 2, "failed"),
        ({"on_item_failure": "threshold", "max_failed": "50%"}, 2, "succeeded"),
        ({"on_item_failure": "threshold", "max_failed": "49%"}, 2, "failed"),
    ],
)
def test_a_batch_tolerates_as_many_failed_items_as_it_says(
    ledger: Ledger, keys: dict[str, Any], failing: int, outcome: str
) -> None:
    place = batch(ledger, items=4, **keys)
    for item in range(failing):
        end(ledger, place, item, RunState.FAILED)
    for item in sorted(open_items(ledger, place)):
        end(ledger, place, item)
    assert ledger.run(place).state == outcome


def test_items_that_ended_well_leave_a_letter_and_the_others_a_record(ledger: Ledger) -> None:
    place = batch(ledger, items=3, on_item_failure="ignore")
    end(ledger, place, 0)
    end(ledger, place, 1, RunState.FAILED)
    assert [run.id for run in ledger.runs([f"{place}#{item}" for item in range(2)])] == [
        f"{place}#1"
    ]
    assert ledger.run(f"{place}#1").reason == "no"
    assert item_states(ledger, place) == "sf."


def ended_by_rescue(ledger: Ledger) -> int:
    """Calls that it takes beat until nothing is left to be ended."""
    calls = 0
    while ledger.rescue(RUNS_PER_RESCUE):
        calls += 1
    return calls


def test_no_call_ends_a_whole_batch_and_rescue_ends_what_is_left(ledger: Ledger) -> None:
    items = ITEMS_PER_END + RUNS_PER_RESCUE + 52
    place = batch(ledger, items=items)
    begin(ledger, f"{place}#0", "token")
    end(ledger, place, 1, RunState.FAILED)
    left = open_items(ledger, place)
    assert (len(left), left[0]) == (RUNS_PER_RESCUE + 51, 0)
    assert ended_by_rescue(ledger) == 2
    assert open_items(ledger, place) == [0]
    assert item_states(ledger, place).startswith(".fcc")
    reasons = {ledger.run(f"{place}#{item}").reason for item in range(2, items)}
    assert reasons == {"another item failed"}
    ledger.finish(f"{place}#0", "token", RunState.SUCCEEDED)
    assert ledger.run(run_of(place)).reason == "step words failed: item 1 failed: no"


def test_an_item_left_to_be_ended_never_begins_from_a_drained_queue(ledger: Ledger) -> None:
    place = batch(ledger, items=ITEMS_PER_END + 20)
    ledger.sent(dict.fromkeys(ledger.steps.below([place]), "celery"))
    ledger.drains.drain("celery")
    ledger.cancel(f"{place}#0", "by hand")  # which fails the batch
    first, second, *_ = open_items(ledger, place)
    refused = ledger.begin(f"{place}#{first}", "token", "worker", "celery")
    assert isinstance(refused, Refused)
    assert ledger.run(f"{place}#{first}").reason == "another item failed"
    ledger.drains.undrain("celery")
    assert isinstance(ledger.begin(f"{place}#{second}", "token", "worker", "celery"), Refused)
    ended_by_rescue(ledger)
    assert ledger.run(run_of(place)).state is RunState.FAILED
    assert set(item_states(ledger, place)) == {"c"}


def test_a_large_batch_is_cancelled_some_items_at_a_time(ledger: Ledger) -> None:
    at_work = 3
    place = batch(ledger, items=3 * ITEMS_PER_END)
    for item in range(at_work):
        begin(ledger, f"{place}#{item}", f"token {item}")
    calls = ledger.client.info("commandstats")["cmdstat_fcall"]["calls"]
    done = ledger.cancel(run_of(place), "by hand")
    assert ledger.client.info("commandstats")["cmdstat_fcall"]["calls"] - calls == 3
    assert done is Cancellation.STOPPING
    assert open_items(ledger, place) == list(range(at_work))
    for item in range(at_work):
        [renewal] = ledger.renew([(f"{place}#{item}", f"token {item}", True, None)])
        assert (renewal.state, renewal.detail) == (LeaseState.STOP, "cancelled")
        ledger.finish(f"{place}#{item}", f"token {item}", RunState.CANCELLED)
    assert ledger.run(run_of(place)).state is RunState.CANCELLED


def test_a_batch_leaves_nothing_that_does_not_expire(ledger: Ledger) -> None:
    place = batch(ledger, items=3, on_item_failure="ignore")
    end(ledger, place, 0, RunState.FAILED)
    for item in (1, 2):
        end(ledger, place, item)
    begin(ledger, f"{run_of(place)}~index", "index")
    ledger.finish(f"{run_of(place)}~index", "index", RunState.SUCCEEDED)
    left = list(ledger.client.scan_iter(f"*{MIDNIGHT:%Y-%m-%d}*"))
    assert [key for key in left if ledger.client.ttl(key) < 0] == []


# Limits: sizes, servers that forgot, and what is left of runs


def test_cancelling_a_batch_ends_its_items_and_fails_the_run(ledger: Ledger) -> None:
    place = batch(ledger, items=5, max_parallel=3)
    begin(ledger, f"{place}#0", "token")
    assert ledger.cancel(place, "by hand") == "stopping"
    assert open_items(ledger, place) == [0]
    assert renew(ledger, f"{place}#0") is LeaseState.STOP
    ledger.finish(f"{place}#0", "token", RunState.CANCELLED)
    assert ledger.run(place).state is RunState.CANCELLED
    assert ledger.run(run_of(place)).reason == "step words cancelled: by hand"


def test_cancelling_a_run_asks_its_running_steps_to_end(ledger: Ledger) -> None:
    spec = pipeline(ledger)
    ledger.admit(ticks(spec, 1))
    step = f"{run_id(spec, 1)}~extract"
    granted = begin(ledger, step).granted
    assert renew(ledger, step, granted=granted) is LeaseState.RENEWED
    assert ledger.cancel(run_id(spec, 1), "by hand") is Cancellation.STOPPING
    assert renew(ledger, step) is LeaseState.STOP
    ledger.finish(step, "token", RunState.CANCELLED)
    assert states(ledger, spec) == ["cancelled"]


def test_a_step_may_return_as_many_names_as_it_likes(ledger: Ledger) -> None:
    spec = pipeline(ledger, STEPS[2:])
    ledger.admit(ticks(spec, 1))
    returned = {f"name {number}": number for number in range(5_000)}
    assert succeed(ledger, run_id(spec, 1), "convert", **returned).ending is Ending.ENDED
    assert params(ledger, run_id(spec, 1)) == returned


def test_no_max_parallel_is_more_than_one_script_can_open(ledger: Ledger) -> None:
    place = batch(ledger, items=10_000, max_parallel=9_000)
    assert len(open_items(ledger, place)) == ITEMS_AT_ONCE


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_steps_returned_is_kept_once_and_only_while_the_run_goes_on(
    ledger: Ledger, is_cancelled: bool
) -> None:
    spec = pipeline(ledger)
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    succeed(ledger, run, "extract", big="x" * 20_000)
    if is_cancelled:
        ledger.cancel(run, "by hand")
    else:
        for step in ("scan", "convert", "index"):
            succeed(ledger, run, step, big="y" * 20_000)
    assert not ledger.run(run).state.is_open
    for key in ledger.client.scan_iter(f"*{run}*"):
        assert sum(map(len, ledger.client.hgetall(key).values())) < 10_000, key


def test_what_is_kept_of_a_lost_step_expires(ledger: Ledger) -> None:
    spec = pipeline(ledger, on_crash="fail")
    ledger.admit(ticks(spec, 1))
    step = f"{run_id(spec, 1)}~extract"
    begin(ledger, step)
    lease_runs_out(ledger, step)
    ledger.rescue()
    assert ledger.run(run_id(spec, 1)).state is RunState.FAILED
    kept = list(ledger.client.scan_iter(f"*{step}*"))
    assert len(kept) == 2, "its record, and that it may be at work"
    assert all(ledger.client.ttl(key) > 0 for key in kept)


def test_a_run_that_never_had_its_turn_leaves_nothing_for_ever(ledger: Ledger) -> None:
    spec = pipeline(ledger, params={"tree": "."})
    request = RunRequest(params={"tree": "x" * 20_000}, delay=timedelta(hours=1))
    run = ledger.trigger(spec, request).id
    ledger.cancel(run, "by hand")
    assert not ledger.run(run).state.is_open
    left = list(ledger.client.scan_iter(f"*{run}*"))
    assert [key for key in left if ledger.client.ttl(key) < 0] == []


def test_a_run_that_begins_with_a_batch_makes_way_for_a_living_one(ledger: Ledger) -> None:
    """The server was changed and forgot the living run; the batch got its items first."""
    place = batch(ledger, begun=False)
    server_changes(ledger)
    assert ledger.steps.expand(place, [1, 2, 3]) == []
    living = job(ledger, "living", key="nightly")
    assert ledger.restore(work(living), "token", granted_of(ledger)).state is LeaseState.REASSERTED
    assert ledger.run(run_of(place)).state is RunState.WAITING
    ledger.finish(work(living).run_id, "token", RunState.SUCCEEDED)
    assert ledger.steps.expand(place, [1, 2, 3]) == []
    ledger.acknowledge_server()
    assert len(ledger.steps.expand(place, [1, 2, 3])) == 3


def test_a_batch_is_asked_for_its_items_again_once_old_leases_have_run_out(ledger: Ledger) -> None:
    place = batch(ledger, begun=False)
    server_changes(ledger)
    ledger.steps.expand(place, [1])
    assert ledger.outbox() == []
    assert ledger.client.zscore(ledger.keys.outbox, place)


def test_a_run_that_waits_while_its_job_is_removed_never_begins(ledger: Ledger) -> None:
    spec = pipeline(ledger, STEPS[2:], overlap="queue_all")
    ledger.admit(ticks(spec, 1, 2, 3))
    succeed(ledger, run_id(spec, 1), "convert")
    remove(ledger, spec)
    assert succeed(ledger, run_id(spec, 1), "index").to_publish == ()
    assert states(ledger, spec) == ["succeeded", "cancelled", "cancelled"]
    assert lock_is_free(ledger, spec)


def test_a_run_that_waits_and_was_started_by_code_begins(ledger: Ledger) -> None:
    keys = {"name": "nightly", "steps": STEPS[2:3], "overlap": "queue_all"}
    spec = GuardedTaskSpec.model_validate(keys)
    ledger.register(spec)
    ledger.admit(ticks(spec, 1, 2))
    assert succeed(ledger, run_id(spec, 1), "convert").to_publish == (f"{run_id(spec, 2)}~convert",)


ODD: list[Any] = [
    *("ä\u20ac\U0001f600", "", "\0", None, True, 0.1, 1e300, -0.0, 12345678901234567890),
    *([], {}, [[[]]], {"": {"a": []}}, {"__type__": "x", "__value__": 1}),
]


def test_values_and_names_come_through_as_they_were(ledger: Ledger) -> None:
    """Lua would make a list of an empty mapping, and round a long number."""
    names = ("state", "finished", "out:", "", "%w.*[", "a/b#1", "\n", "ä")
    steps = [
        {"task": "proj.first", "priority": 2, "args": ODD, "kwargs": {"odd": ODD}},
        {"task": "proj.each", "priority": 1, "foreach": "odd"},
        {"task": "proj.last", "priority": 0},
    ]
    spec = pipeline(ledger, steps, params={"odd": ODD, "steps": ODD})
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    [assignment] = assignments(ledger, [ledger.run(f"{run}~first")]).values()
    assert (repr([*assignment.args]), repr(assignment.kwargs["odd"])) == (repr(ODD), repr(ODD))
    succeed(ledger, run, "first", **dict.fromkeys(names, ODD))
    found = params(ledger, run)
    assert found.keys() == {"odd", "steps", *names}
    assert {repr(value) for value in found.values()} == {repr(ODD)}
    items = ledger.steps.items(ledger.steps.expand(f"{run}~each", found["odd"]))
    assert repr([item for (item,) in items.values()]) == repr(ODD)
