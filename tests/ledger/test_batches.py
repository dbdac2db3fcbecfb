"""Steps that are fanned out over a list: each item once, one end, bounded records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.job.steps import ITEMS_AT_ONCE
from supervisor.ledger.functions import ITEMS_PER_END, ITEMS_PER_FILL
from supervisor.ledger.ledger import RUNS_PER_RESCUE, Ledger
from supervisor.ledger.replies import (
    Cancellation,
    LeaseState,
    Refused,
)
from tests.ledger.jobs import MIDNIGHT, begin, job, run_id, ticks


def batch(ledger: Ledger, items: int = 3, begun: bool = True, **keys: Any) -> str:
    """Id of the batch of a run that has been admitted, its items brought."""
    steps = (
        {"task": "proj.words", "priority": 2, "foreach": "files", **keys},
        {"task": "proj.index", "priority": 1},
    )
    spec = job(ledger, task=None, steps=steps, params={"files": list(range(items))})
    ledger.admit(ticks(spec, 1))
    place = f"{run_id(spec, 1)}/words"
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
    return place.partition("/")[0]


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
    found: dict[str, int] = json.loads(ledger.steps.params(run_of(place))["words"])
    return found


def test_a_batch_is_published_until_it_has_its_items(ledger: Ledger) -> None:
    place = batch(ledger, begun=False)
    assert ledger.outbox() == [place]
    assert len(ledger.steps.expand(place, [7, 8, 9])) == 3
    assert ledger.outbox() == []
    assert ledger.steps.items([f"{place}#1"]) == {f"{place}#1": (8,)}


def test_a_batch_ends_once_with_its_last_item(ledger: Ledger) -> None:
    place = batch(ledger)
    for item in (2, 0):
        assert end(ledger, place, item).next_up == ()
    assert ledger.steps.below([run_of(place)]) == [place]
    assert end(ledger, place, 1).next_up == (run_of(place),)
    assert ledger.steps.below([run_of(place)]) == [f"{run_of(place)}/index"]
    assert counts(ledger, place) == {"total": 3, "succeeded": 3, "failed": 0}


def test_a_batch_of_one_item_has_its_state(ledger: Ledger) -> None:
    place = batch(ledger, items=1)
    assert item_states(ledger, place) == "."
    assert end(ledger, place, 0).next_up == (run_of(place),)
    assert counts(ledger, place) == {"total": 1, "succeeded": 1, "failed": 0}


def test_items_are_queued_in_portions_as_there_is_room_for_one(ledger: Ledger) -> None:
    place = batch(ledger, items=ITEMS_AT_ONCE + ITEMS_PER_FILL + 7)
    for item in range(ITEMS_PER_FILL - 1):
        assert end(ledger, place, item).next_up == ()
    assert len(end(ledger, place, ITEMS_PER_FILL - 1).next_up) == ITEMS_PER_FILL
    assert len(open_items(ledger, place)) == ITEMS_AT_ONCE
    ends = [end(ledger, place, item) for item in open_items(ledger, place)]
    assert sum(len(ended.next_up) for ended in ends) == 7
    assert open_items(ledger, place) == list(range(ITEMS_AT_ONCE + 100, ITEMS_AT_ONCE + 107))


def test_a_publisher_that_dies_in_between_leaves_the_rest_to_the_workers(ledger: Ledger) -> None:
    place = batch(ledger, items=3 * ITEMS_PER_FILL, begun=False)
    assert len(ledger.steps.expand(place, list(range(3 * ITEMS_PER_FILL)))) == ITEMS_PER_FILL
    assert len(end(ledger, place, 0).next_up) == ITEMS_PER_FILL


def test_an_item_that_began_and_ended_as_most_do_is_as_any_other(ledger: Ledger) -> None:
    """What the ordinary case leaves behind, for which there are functions of its own."""
    place = batch(ledger, items=3)
    begin(ledger, f"{place}#0", "token 0")
    end(ledger, place, 1)
    assert ledger.renew([(f"{place}#1", "token 1", True)])[0].state is LeaseState.ENDED
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
def test_how_many_items_may_fail(
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
        [renewal] = ledger.renew([(f"{place}#{item}", f"token {item}", True)])
        assert (renewal.state, renewal.detail) == (LeaseState.STOP, "cancelled")
        ledger.finish(f"{place}#{item}", f"token {item}", RunState.CANCELLED)
    assert ledger.run(run_of(place)).state is RunState.CANCELLED


def test_a_batch_leaves_nothing_that_does_not_expire(ledger: Ledger) -> None:
    place = batch(ledger, items=3, on_item_failure="ignore")
    end(ledger, place, 0, RunState.FAILED)
    for item in (1, 2):
        end(ledger, place, item)
    begin(ledger, f"{run_of(place)}/index", "index")
    ledger.finish(f"{run_of(place)}/index", "index", RunState.SUCCEEDED)
    left = list(ledger.client.scan_iter(f"*{MIDNIGHT:%Y-%m-%d}*"))
    assert [key for key in left if ledger.client.ttl(key) < 0] == []
