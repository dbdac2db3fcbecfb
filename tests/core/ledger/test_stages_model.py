"""Runs of several steps on the real server, whatever happens: what stages_model.py says holds.

`make soak` takes many more steps than a run of all tests does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.job.run import RunState
from supervisor.job.run_ids import StepId
from supervisor.ledger import function_library, functions, limits
from supervisor.ledger.attempt import Ending, Finished, Grant, GrantedAttempt, Work
from supervisor.ledger.functions import Functions
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.store.keys import Keys
from supervisor.testing import comes_due, empty, lease_runs_out, server_changes, slot_key
from tests.core.ledger.machines import run_machine
from tests.core.ledger.stages_model import OPEN, Seen, faults
from tests.damage import lose_run, stray
from tests.jobs import MIDNIGHT, granted_of, job, ticks

STEPS = int(os.environ.get("SUPERVISOR_SOAK_STEPS", "1000"))
REPORTS = ("succeeded", "failed", "timed_out", "lost", "dead", "unbegun", "retry")
LIVING = "living@manual-1"

BATCHES = st.fixed_dictionaries(
    {"foreach": st.sampled_from(["many", "few", "none", "no list", "nowhere"])},
    optional={"max_parallel": st.integers(1, 2)},
)
LENIENT = (
    st.just({})
    | st.just({"on_item_failure": "ignore"})
    | st.builds(
        lambda most: {"on_item_failure": "threshold", "max_failed": most},
        st.integers(0, 2) | st.just("50%"),
    )
)
STEP = st.just({}) | st.builds(lambda batch, policy: {**batch, **policy}, BATCHES, LENIENT)
STAGES = st.lists(st.lists(STEP, min_size=1, max_size=3), min_size=1, max_size=3)
JOBS = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(["skip", "queue_one", "queue_all", "replace", "allow"]),
        "max_running": st.sampled_from([None, None, 2]),
        "on_step_failure": st.sampled_from(["stop", "continue"]),
        "on_crash": st.sampled_from(["rerun", "rerun", "fail"]),
        "max_crashes": st.integers(1, 3),
        "history": st.integers(1, 3),
        "serial": st.sampled_from([False, False, True]),
    }
)
PARAMS = {"many": ["ä", None, 0.1, {"a": []}, {}, [[]]], "few": [1, 2], "none": [], "no list": "x"}
#: Nothing ends by the clock but what a rule makes end.
LONG = dict.fromkeys(["lease_ttl", "start_deadline"], "9h")


def as_steps(stages: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The lowest priority is 0; the file does not list them in the order in which they run."""
    steps = [
        {"name": f"s{place}{number}", "task": "proj.step", "priority": place, **keys}
        for place, stage in enumerate(stages)
        for number, keys in enumerate(stage)
    ]
    return steps[::2] + steps[1::2]


class StagesMachine(RuleBasedStateMachine):
    steps, steps_each = 0, 40

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger, self.client, self.keys = ledger, ledger.client, ledger.keys
        empty(ledger)
        self.functions = Functions(ledger.client, ledger.keys)
        self.numbers = count()
        self.seconds = count()
        self.admitted: list[str] = []
        self.attempts: dict[str, str] = {}
        self.granted: dict[str, GrantedAttempt] = {}
        self.succeeded: dict[str, str] = {}
        """The step or item, and the token of the attempt whose success was accepted."""
        self.silent: set[str] = set()
        self.cut: set[str] = set()
        self.known: set[str] = set()
        """Children that there are or were: which of two runs leaves the history first depends on
        whether they ended in the same millisecond, and no rule may."""
        self.is_living = False

    @initialize(keys=JOBS, stages=STAGES)
    def load_a_job(self, keys: dict[str, Any], stages: list[list[dict[str, Any]]]) -> None:
        steps = as_steps(stages)
        self.spec = job(
            self.ledger, since=None, task=None, steps=steps, params=PARAMS, **LONG, **keys
        )
        self.refresh()
        self.admit(by_hand=False)

    def refresh(self) -> None:
        self.seen = Seen(self.ledger, self.spec)

    def drawn(self, data: st.DataObject, places: Collection[str]) -> str:
        return data.draw(st.sampled_from(sorted(places)))

    # Beat

    @rule(by_hand=st.booleans())
    def a_run_is_admitted(self, by_hand: bool) -> None:
        self.admit(by_hand)

    def admit(self, by_hand: bool) -> None:
        if by_hand:
            request = RunRequest(run_id=f"{self.spec.name}@manual-{next(self.numbers)}")
            self.admitted.append(self.ledger.admit_request(self.spec, request).run_id)
            self.ledger.admit_request(self.spec, request)  # the first reply was lost
        else:
            [admission] = self.ledger.admit(ticks(self.spec, next(self.seconds)))
            self.admitted.append(admission.run_id)

    @precondition(lambda self: self.unsent)
    @rule()
    def beat_publishes(self) -> None:
        self.ledger.sent(dict.fromkeys(self.unsent, "celery"))

    @property
    def unsent(self) -> list[str]:
        return [run for run in self.seen.get(self.keys.outbox) if run not in self.seen.batches]

    @rule(data=st.data())
    def beat_rescues(self, data: st.DataObject) -> None:
        delayed = self.seen.get(self.keys.delayed)
        if delayed:
            comes_due(self.ledger, self.drawn(data, delayed))
        self.ledger.rescue()

    @rule(data=st.data())
    def something_is_cancelled_twice(self, data: st.DataObject) -> None:
        still = [run for run, v in self.seen.runs.items() if v["state"] in OPEN and run != LIVING]
        if still:
            run = self.drawn(data, still)
            for _ in range(2):
                self.ledger.cancel(run, "by hand")

    # Batches

    @precondition(lambda self: self.seen.batches)
    @rule(data=st.data(), chunk=st.integers(1, 3), until=st.integers(0, 7))
    def a_batch_gets_some_of_its_items(self, data: st.DataObject, chunk: int, until: int) -> None:
        """By one who may die on the way; whoever comes next begins with the first of them."""
        batch = self.drawn(data, self.seen.batches)
        items = self.items_of(batch)
        for offset in range(0, max(1, min(until, len(items))), chunk):
            self.bring(batch, items, offset, chunk)

    @precondition(lambda self: self.seen.batches)
    @rule(data=st.data())
    def two_bring_a_batch_its_items_at_the_same_time(self, data: st.DataObject) -> None:
        batch = self.drawn(data, self.seen.batches)
        items = self.items_of(batch)
        turns = {chunk: [*range(0, max(1, len(items)), chunk)] for chunk in (2, 3)}
        while any(turns.values()):
            chunk = data.draw(st.sampled_from([chunk for chunk in turns if turns[chunk]]))
            self.bring(batch, items, turns[chunk].pop(0), chunk)

    def bring(self, batch: str, items: list[Any], offset: int, chunk: int) -> None:
        texts = [json.dumps(item) for item in items[offset : offset + chunk]]
        for _ in range(2):  # the first reply was lost
            call = {"run_id": batch, "total": len(items), "offset": offset, "items": texts}
            self.functions("expand", json.dumps(call))

    def items_of(self, batch: str) -> list[Any]:
        """As the publisher does; what cannot be fanned out fails."""
        place = StepId.of(batch)
        assert place
        items = self.ledger.steps.param(place.run, self.seen.run(batch)["foreach"])
        if isinstance(items, list):
            return items
        self.ledger.give_up(batch, "no list")
        return []

    # Workers

    @precondition(lambda self: self.seen.in_state("queued"))
    @rule(data=st.data(), then=st.sampled_from([None, *REPORTS]))
    def messages_arrive(self, data: st.DataObject, then: str | None) -> None:
        queued = st.sampled_from(self.seen.in_state("queued"))
        for place in data.draw(st.lists(queued, min_size=1, unique=True)):
            token = self.begin(place)
            if token and then:
                self.refresh()
                self.finish(token, then)

    @rule(data=st.data())
    def a_second_copy_of_a_message_arrives(self, data: st.DataObject) -> None:
        places = {*self.attempts.values(), *self.known}
        if places:
            self.begin(self.drawn(data, places))

    def begin(self, place: str) -> str | None:
        before, token = self.seen.run(place), f"token {next(self.numbers)}"
        if "foreach" in before:
            return None
        answer = self.ledger.begin(place, token, "worker")
        if not isinstance(answer, Grant):
            return None
        self.attempts[token], self.granted[token] = place, answer.granted
        assert before["state"] == "queued"
        assert place not in self.succeeded
        if "item" in before and "attempt" not in before:
            batch = self.seen.run(before["parent"])
            assert not batch.keys() & {"stopped", "ending"}, f"{place} begins after the end of all"
        assert self.ledger.begin(place, token, "worker") == answer
        return token

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), outcome=st.sampled_from(REPORTS), again=st.booleans())
    def an_attempt_ends(self, data: st.DataObject, outcome: str, again: bool) -> None:
        """Any that ever began, which may be over, given up, or another's by now."""
        token = self.drawn(data, self.attempts)
        self.finish(token, outcome)
        if again:
            self.refresh()
            assert self.finish(token, outcome).ending in (Ending.ALREADY, Ending.STALE)

    @precondition(lambda self: self.seen.in_state("running"))
    @rule(data=st.data(), outcome=st.sampled_from(REPORTS))
    def an_attempt_at_work_ends(self, data: st.DataObject, outcome: str) -> None:
        place = self.drawn(data, self.seen.in_state("running"))
        self.finish(self.seen.run(place)["token"], outcome)

    def finish(self, token: str, outcome: str) -> Finished:
        place, ledger = self.attempts[token], self.ledger
        before = self.seen.run(place)
        is_own = (before.get("state"), before.get("token")) == ("running", token)
        if outcome == "retry":
            finished = ledger.retry(place, token, timedelta(hours=9), granted=self.granted[token])
        elif outcome == "dead":
            finished = ledger.report_dead(place, token, "killed", self.granted[token])
        elif outcome == "unbegun":
            finished = ledger.undo_begin(place, token)
        else:
            step = StepId.of(place)
            said = {"last": token, f"{step and step.step}": token}
            hands_on = outcome == "succeeded" and step and step.item is None
            returned = said if hands_on else None
            granted = self.granted[token]
            finished = ledger.finish(place, token, RunState(outcome), "", returned, granted=granted)
        if is_own:
            assert finished.ending not in (Ending.ALREADY, Ending.STALE)
        if finished.ending is Ending.ENDED and outcome == "succeeded":
            assert place not in self.succeeded, "a success that counts twice"
            self.succeeded[place] = token
        return finished

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def hearts_beat(self, data: st.DataObject) -> None:
        tokens = data.draw(st.lists(st.sampled_from(sorted(self.attempts)), min_size=1))
        self.ledger.renew([(self.attempts[t], t, True, self.granted[t]) for t in tokens])

    @precondition(lambda self: self.seen.in_state(*OPEN))
    @rule(data=st.data(), is_noticed=st.booleans())
    def leases_and_deadlines_run_out(self, data: st.DataObject, is_noticed: bool) -> None:
        places = st.sampled_from(self.seen.in_state(*OPEN))
        for place in data.draw(st.lists(places, min_size=1, unique=True)):
            stray(self.ledger, self.keys.leases, place)
        if is_noticed:
            self.ledger.rescue()

    @rule(data=st.data(), is_noticed=st.booleans())
    def the_lock_of_a_run_runs_out(self, data: st.DataObject, is_noticed: bool) -> None:
        held = self.seen.get(self.keys.lock_state(self.spec.lock))
        holders = sorted({run for k, run in held.items() if k.startswith("holder:")} - {LIVING})
        if not holders:
            return
        run = self.drawn(data, holders)
        lease_runs_out(self.ledger, run)
        self.silent.add(run)
        self.cut.add(run)
        if is_noticed:
            self.ledger.rescue()

    # The server

    @rule(is_over=st.booleans())
    def the_server_is_another_with_the_same_data(self, is_over: bool) -> None:
        server_changes(self.ledger)
        self.ledger.rescue()
        if is_over:
            self.ledger.acknowledge_server()

    @rule()
    def the_time_for_old_leases_is_over(self) -> None:
        self.ledger.acknowledge_server()

    @precondition(lambda self: not self.is_living and self.spec.most_running == 1)
    @rule()
    def a_living_run_that_the_server_forgot_comes_back(self) -> None:
        other = job(self.ledger, "living", since=None, key=self.spec.lock, lease_ttl="9h")
        work = Work(LIVING, other.name, MIDNIGHT, other.rules(), "worker")
        self.is_living = (
            self.ledger.restore(work, "living", granted_of(self.ledger)).state == "reasserted"
        )

    @precondition(lambda self: self.is_living)
    @rule()
    def the_living_run_ends(self) -> None:
        self.ledger.finish(LIVING, "living", RunState.SUCCEEDED)
        lose_run(self.ledger, LIVING)
        self.is_living = False

    # What holds after every step

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.refresh()
        slots = self.seen.get(self.keys.lock_state(self.spec.lock))
        held = {run: int(k[7:]) for k, run in slots.items() if k.startswith("holder:")}
        for run in self.silent & held.keys():
            if slot_key(self.keys, self.spec.lock, held[run]) in self.seen.values:
                self.silent.discard(run)
        assert list(faults(self.seen, self.silent, self.cut, self.admitted)) == []
        self.known |= self.seen.children.keys()
        self.items_are_what_they_were()
        self.a_stage_finds_what_those_before_returned()
        type(self).steps += 1

    def items_are_what_they_were(self) -> None:
        for batch, v in self.seen.children.items():
            if "foreach" in v and v["state"] == "running":
                items = self.seen.get(self.keys.items(batch))
                assert [json.loads(item) for item in items] == PARAMS[v["foreach"]]

    def a_stage_finds_what_those_before_returned(self) -> None:
        for run, v in self.seen.roots.items():
            if not v.get("stage") or v["state"] not in OPEN:
                continue
            expected: dict[str, str] = {}
            for step in sorted(self.spec.steps, key=lambda step: -step.priority):
                token = self.succeeded.get(f"{run}~{step.label}")
                if token and step.foreach is None and step.priority > int(v["stage"]):
                    expected |= {step.label: token, "last": token}
            found = self.seen.get(self.keys.params(run))
            assert {name: json.loads(found[name]) for name in expected} == expected

    def teardown(self) -> None:
        """Whatever happened, all of it comes to an end once workers and beat are there."""
        if not hasattr(self, "spec"):
            return
        self.ledger.acknowledge_server()
        if self.is_living:
            self.the_living_run_ends()
        # A serial queue takes the steps and items of all runs one by one.
        for _ in range(200 + 50 * len(self.seen.roots)):
            self.nothing_is_wrong()
            if not any(v["state"] in OPEN for v in self.seen.roots.values()):
                return
            self.all_do_their_work()
        raise AssertionError(f"still open: {sorted(self.seen.in_state(*OPEN))}")

    def all_do_their_work(self) -> None:
        for run in self.seen.get(self.keys.delayed):
            comes_due(self.ledger, run)
        self.ledger.rescue()
        for run in [*self.ledger.outbox(), *self.seen.get(self.keys.sent)]:
            self.refresh()
            if run in self.seen.batches:
                items = self.items_of(run)
                self.ledger.steps.expand(run, items)
            elif self.seen.run(run):
                self.begin(run)
        self.refresh()
        for place in self.seen.in_state("running"):
            self.finish(self.seen.run(place)["token"], "succeeded")
        for run in self.client.zrange(self.keys.outbox, 0, -1):
            stray(self.ledger, self.keys.outbox, run)


#: With 1 each call ends one item and leaves the others to be ended.
@pytest.mark.timeout(0)
@pytest.mark.parametrize("items_per_end", [limits.ITEMS_PER_END, 1])
def test_stages_hold_whatever_happens_in_whatever_order(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, items_per_end: int
) -> None:
    monkeypatch.setattr(limits, "ITEMS_PER_END", items_per_end)
    monkeypatch.setattr(
        functions, "library_of", lambda prefix: function_library.Library(Keys(prefix))
    )
    run_machine(StagesMachine, Ledger(ledger.client, ledger.keys), STEPS)
    assert StagesMachine.steps >= STEPS
