"""What a task and a call say of their guard."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from supervisor.app import supervise
from supervisor.errors import InvalidGuard
from supervisor.files.job_checks import GuardedCall, guarded_task_spec
from supervisor.integrations.on_commit import trigger_of
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import is_below
from supervisor.sending.calls import request_of
from supervisor.sending.starting import start
from tests.matrix import since


def test_a_guard_takes_the_keys_of_a_job() -> None:
    guard = {"overlap": "queue_one", "key": "import:{feed}", "lease_ttl": "1m"}
    spec = guarded_task_spec("proj.import_feed", guard)
    assert (spec.name, spec.task, spec.schedule) == (*["proj.import_feed"] * 2, "when called")
    assert (spec.overlap, spec.key) == (OverlapPolicy.QUEUE_ONE, "import:{feed}")
    assert spec.lease_ttl == timedelta(minutes=1)


def test_all_that_is_wrong_with_a_guard_is_told_at_once() -> None:
    guard = {"overlap": "queue", "lease": "1m", "every": "5m", "max_running": 0}
    with pytest.raises(InvalidGuard) as caught:
        guarded_task_spec("proj.import_feed", guard)
    for words in (
        *("'every' is not for a guarded task", "'overlap': 'queue' is not one of"),
        *("unknown key 'lease'", "'max_running'"),
    ):
        assert any(words in problem for problem in caught.value.problems), words


@pytest.mark.parametrize(
    ("guard", "what"),
    [("skip", "neither True nor a mapping"), ({"key": "{a.b}"}, "neither a name nor a position")],
)
def test_a_guard_that_is_no_guard_is_refused(guard: Any, what: str) -> None:
    with pytest.raises(InvalidGuard, match=what):
        guarded_task_spec("proj.import_feed", guard)


def test_a_call_says_key_policy_and_patience() -> None:
    said = GuardedCall.of({"key": "a", "overlap": "queue_all", "max_wait": "90s"}, "proj.t")
    assert said.key == "a"
    assert said.overlap is OverlapPolicy.QUEUE_ALL
    assert said.max_wait == timedelta(seconds=90)
    assert GuardedCall.of(None, "proj.t") == GuardedCall.of(True, "proj.t") == GuardedCall()


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ({"overlp": "skip"}, "did you mean 'overlap'"),
        ({"overlap": "sometimes"}, "'overlap'"),
        ({"max_wait": "soon"}, "'max_wait'"),
        ("skip", "neither True nor a mapping"),
    ],
)
def test_a_call_that_says_nonsense_is_refused(header: Any, what: str) -> None:
    with pytest.raises(InvalidGuard, match=what):
        GuardedCall.of(header, "proj.t")


@pytest.mark.parametrize("run_id", ["me@example.org/42", "nightly@2026-03-01T02:00:00Z/a#1"])
def test_a_call_cannot_have_the_id_of_a_step(run_id: str) -> None:
    app = Celery("team", set_as_current=False)
    supervise(app)

    @app.task(guard=True, shared=False)
    def work() -> None: ...

    with pytest.raises(InvalidGuard, match="is that of a step"):
        request_of(work, (), {}, run_id, {})


@pytest.mark.parametrize("run_id", ["me@example.org", "imports/42", "a/b@c/d"])
def test_any_other_id_is_a_callers_to_choose(run_id: str) -> None:
    assert not is_below(run_id)


@pytest.mark.parametrize("run_id", ["order-17", "orders/17@x", "documents@orders/17"])
def test_a_started_run_has_an_id_that_its_steps_can_be_told_by(run_id: str) -> None:
    app = Celery("team", set_as_current=False)
    supervise(app)
    with pytest.raises(InvalidGuard, match="is no id for it"):
        start([("proj.a", 2), ("proj.b", 1)], run_id=run_id, app=app)


class Order(BaseModel):
    number: int


@since("celery", "5.7", "a model among the arguments is no JSON")
def test_a_model_may_be_handed_on_after_a_commit() -> None:
    app = Celery("orders", set_as_current=False, broker="redis://127.0.0.1:1/0")
    supervise(app)

    @app.task(guard=True, shared=False, pydantic=True)
    def pack(order: Order) -> None: ...

    trigger = trigger_of(pack, (Order(number=3),), None, None, {})
    assert trigger.facts["args"] == ({"number": 3},)
