"""Runs of several steps at their limits: sizes, servers that forgot, and what is left of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from supervisor.beat.emitter import note_rescue
from supervisor.job.run import RunState
from supervisor.job.steps import ITEMS_AT_ONCE
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, LeaseState, Rescue
from supervisor.ledger.requests import RunRequest
from supervisor.sending.assignments import Assignments
from tests.ledger.jobs import begin, job, lock_is_free, renew, run_id, states, ticks
from tests.ledger.test_batches import batch, open_items, run_of
from tests.ledger.test_comebacks import another_server, grace_is_over, work
from tests.ledger.test_stages import STEPS, goes_silent, params, pipeline, succeed


def test_cancelling_a_batch_ends_its_items_and_fails_the_run(ledger: Ledger) -> None:
    place = batch(ledger, items=5, max_parallel=3)
    begin(ledger, f"{place}#0", "token")
    assert ledger.cancel(place, "by hand") == "stopping"
    assert open_items(ledger, place) == [0]
    assert renew(ledger, f"{place}#0") is LeaseState.STOP
    ledger.finish(f"{place}#0", "token", RunState.CANCELLED)
    assert ledger.run(place).state is RunState.CANCELLED
    assert ledger.run(run_of(place)).reason == "step words cancelled: by hand"


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


def test_a_run_that_never_had_its_turn_leaves_nothing_for_ever(ledger: Ledger) -> None:
    spec = pipeline(ledger, params={"tree": "."})
    request = RunRequest(params={"tree": "x" * 20_000}, delay=timedelta(hours=1))
    run = ledger.trigger(spec, request).id
    ledger.cancel(run, "by hand")
    assert not ledger.run(run).state.is_open
    left = list(ledger.client.scan_iter(f"*{run}*"))
    assert [key for key in left if ledger.client.ttl(key) < 0] == []


def test_a_batch_whose_items_vanished_fails(ledger: Ledger) -> None:
    place = batch(ledger, items=3)
    begin(ledger, f"{place}#0", "token")
    ledger.client.delete(*(ledger.keys.run(f"{place}#{item}") for item in range(3)))
    goes_silent(ledger, run_of(place))
    ledger.client.delete(ledger.keys.lock("nightly"))
    ledger.rescue()
    assert ledger.run(place).state is RunState.FAILED
    assert ledger.run(run_of(place)).state is RunState.FAILED


def test_an_item_that_nothing_brings_forward_is_settled(ledger: Ledger) -> None:
    place = batch(ledger, items=2)
    ledger.client.zrem(ledger.keys.leases, f"{place}#0", f"{place}#1")
    goes_silent(ledger, run_of(place))
    ledger.client.delete(ledger.keys.lock("nightly"))
    ledger.rescue()
    ledger.rescue()
    assert (
        ledger.run(run_of(place)).reason
        == "step words failed: item 0 expired: start deadline passed"
    )


def test_beat_has_a_word_for_a_run_that_is_mended_to_its_end(ledger: Ledger) -> None:
    spec = pipeline(ledger, STEPS[2:3])
    ledger.admit(ticks(spec, 1))
    begin(ledger, f"{run_id(spec, 1)}/convert")
    ledger.client.delete(ledger.keys.run(f"{run_id(spec, 1)}/convert"))
    goes_silent(ledger, run_id(spec, 1))
    ledger.client.delete(ledger.keys.lock(spec.lock))
    rescues = ledger.rescue()
    assert rescues == (Rescue("ended", run_id(spec, 1), spec.name),)
    note_rescue(rescues[0])


def test_a_run_that_begins_with_a_batch_makes_way_for_a_living_one(ledger: Ledger) -> None:
    """The server was changed and forgot the living run; the batch got its items first."""
    place = batch(ledger, begun=False)
    another_server(ledger)
    assert ledger.steps.expand(place, [1, 2, 3]) == []
    living = job(ledger, "living", key="nightly")
    assert ledger.restore(work(living), "token").state is LeaseState.REASSERTED
    assert ledger.run(run_of(place)).state is RunState.WAITING
    ledger.finish(work(living).run_id, "token", RunState.SUCCEEDED)
    assert ledger.steps.expand(place, [1, 2, 3]) == []
    grace_is_over(ledger)
    assert len(ledger.steps.expand(place, [1, 2, 3])) == 3


def test_a_batch_is_asked_for_its_items_again_once_old_leases_have_run_out(ledger: Ledger) -> None:
    place = batch(ledger, begun=False)
    another_server(ledger)
    ledger.steps.expand(place, [1])
    assert ledger.outbox() == []
    assert ledger.client.zscore(ledger.keys.outbox, place)


def test_of_three_that_return_the_same_all_are_named(ledger: Ledger) -> None:
    spec = pipeline(ledger, [{"task": f"proj.{name}", "priority": 1} for name in "abc"])
    ledger.admit(ticks(spec, 1))
    for step in "cab":
        succeed(ledger, run_id(spec, 1), step, best=step)
    assert ledger.client.hget(ledger.keys.run(run_id(spec, 1)), "conflict:best") == "a,b,c"


def test_a_run_that_waits_while_its_job_is_removed_never_begins(ledger: Ledger) -> None:
    spec = pipeline(ledger, STEPS[2:], overlap="queue_all")
    ledger.admit(ticks(spec, 1, 2, 3))
    succeed(ledger, run_id(spec, 1), "convert")
    ledger.client.hdel(ledger.keys.jobs, spec.name)
    assert succeed(ledger, run_id(spec, 1), "index").next_up == ()
    assert states(ledger, spec) == ["succeeded", "cancelled", "cancelled"]
    assert lock_is_free(ledger, spec)


def test_a_run_that_waits_and_was_started_by_code_begins(ledger: Ledger) -> None:
    spec = pipeline(ledger, STEPS[2:3], overlap="queue_all")
    ledger.client.rename(ledger.keys.jobs, ledger.keys.guarded)
    ledger.admit(ticks(spec, 1, 2))
    assert succeed(ledger, run_id(spec, 1), "convert").next_up == (run_id(spec, 2),)


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
    [assignment] = Assignments(ledger).of([ledger.run(f"{run}/first")]).values()
    assert (repr([*assignment.args]), repr(assignment.kwargs["odd"])) == (repr(ODD), repr(ODD))
    succeed(ledger, run, "first", **dict.fromkeys(names, ODD))
    found = params(ledger, run)
    assert found.keys() == {"odd", "steps", *names}
    assert {repr(value) for value in found.values()} == {repr(ODD)}
    items = ledger.steps.items(ledger.steps.expand(f"{run}/each", found["odd"]))
    assert repr([item for (item,) in items.values()]) == repr(ODD)
