"""What a message says decides nothing: `begin` compares it with what the ledger has of the run."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, Task, _state, signals

from supervisor.catalog.entries import Entries
from supervisor.job.run import RunState
from supervisor.ledger.attempt import Grant, Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import CONTENTS_KEPT
from supervisor.ledger.run_request import CallArguments, RunRequest
from supervisor.sending.content import as_json, content_of
from supervisor.sending.publisher import publisher_of
from supervisor.worker.task import trace_run
from tests.features.following.test_after import loaded
from tests.jobs import MIDNIGHT, admitted, job, run_id, ticks
from tests.queues import taken

TASK = "proj.nightly"


def begins(ledger: Ledger, run: str, *said: Any, task: str = TASK, token: str = "token") -> Any:
    """What the ledger answers to a message with these arguments: args, then kwargs."""
    args, kwargs = said or ((), {})
    return ledger.begin(run, token, "worker", content=content_of(run, task, args, kwargs))


@pytest.mark.parametrize(
    ("said", "task"),
    [
        (([1], {"tree": "docs"}), "proj.other"),
        (([2], {"tree": "docs"}), TASK),
        (([], {"tree": "docs"}), TASK),
        (([1], {}), TASK),
        (([1], {"tree": "docs", "more": None}), TASK),
    ],
)
def test_a_message_that_differs_from_the_job_starts_nothing(
    ledger: Ledger, said: tuple[Any, Any], task: str
) -> None:
    spec = job(ledger, args=[1], kwargs={"tree": "docs"})
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    assert begins(ledger, run, *said, task=task) == Refused(run, Refusal.DIFFERS, "1")
    assert begins(ledger, run, *said, task=task) == Refused(run, Refusal.DIFFERS, "2")
    refused = ledger.run(run)
    assert refused.state is RunState.QUEUED
    assert refused.obstacle and (refused.obstacle.by, refused.obstacle.times) == ("worker", 2)
    assert isinstance(begins(ledger, run, [1], {"tree": "docs"}), Grant)
    assert ledger.run(run).obstacle is None


def test_a_wait_for_a_rate_limit_between_does_not_count_its_refusals_from_one(
    ledger: Ledger,
) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0))
    run, counts = run_id(spec, 0), []
    for _ in range(3):
        ledger.note_obstacle([run], "worker", "rate limit", is_minor=True)
        counts.append(begins(ledger, run, task="proj.other").detail)
    assert counts == ["1", "2", "3"]
    ledger.note_obstacle([run], "worker", "unknown task")
    obstacle = ledger.run(run).obstacle
    assert obstacle and (obstacle.text, obstacle.times) == ("unknown task", 1)


def test_of_waits_for_a_rate_limit_alone_the_last_is_said(ledger: Ledger) -> None:
    run = run_id(admitted(ledger, 0), 0)
    for _ in range(2):
        ledger.note_obstacle([run], "worker", "rate limit", is_minor=True)
    obstacle = ledger.run(run).obstacle
    assert obstacle and (obstacle.text, obstacle.times) == ("rate limit", 2)


def test_only_a_queued_run_is_noted_to_say_something_else(ledger: Ledger) -> None:
    queued, ended = (run_id(admitted(ledger, 0, name=name), 0) for name in ("queued", "ended"))
    ledger.cancel(ended, "enough")
    for run in (queued, ended, "nightly@gone"):
        ledger.note_content(run, "a b c proj.other")
    said = [ledger.client.hget(ledger.keys.run(run), "said") for run in (queued, ended)]
    assert said == ["a b c proj.other", None]
    assert not ledger.client.exists(ledger.keys.run("nightly@gone"))


def test_arguments_of_a_caller_are_compared_in_place_of_the_jobs(ledger: Ledger) -> None:
    spec = job(ledger, args=[1], kwargs={"tree": "docs"})
    run = ledger.trigger(spec, RunRequest(args=["ä", 1.5, None])).id
    for args, kwargs in (([1], {"tree": "docs"}), (["ä", 1.5, None], {})):
        assert begins(ledger, run, args, kwargs).refusal is Refusal.DIFFERS
    assert isinstance(begins(ledger, run, ["ä", 1.5, None], {"tree": "docs"}), Grant)


def test_a_retry_may_give_others(ledger: Ledger) -> None:
    spec = job(ledger, args=[1], max_retries=1)
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    begins(ledger, run, [1], {})
    ledger.retry(run, "token", timedelta(), arguments=CallArguments(args=[2]))
    ledger.rescue()
    assert begins(ledger, run, [1], {}, token="again").refusal is Refusal.DIFFERS
    assert isinstance(begins(ledger, run, [2], {}, token="again"), Grant)


def test_what_was_sent_before_an_edit_begins(ledger: Ledger, entries: Entries) -> None:
    for number in range(7):
        keys = {"every": "1s", "args": [number], "overlap": "allow"}
        spec = loaded(ledger, entries, nightly=keys)["nightly"]
    ledger.admit(ticks(spec, *range(7)))
    for number in range(7):
        answer = begins(ledger, run_id(spec, number), [number], {}, token=str(number))
        assert isinstance(answer, Grant) is (number >= 7 - CONTENTS_KEPT)


def test_steps_and_items_have_their_own(ledger: Ledger) -> None:
    steps = [
        {"task": "proj.each", "priority": 1, "foreach": "trees", "args": ["all"]},
        {"task": TASK, "priority": 1, "args": [1], "kwargs": {"a": "${SECRET}"}},
    ]
    spec = job(ledger, task=None, steps=steps, params={"trees": ["a", {"b": 1}]})
    ledger.admit(ticks(spec, 0))
    step, batch = f"{run_id(spec, 0)}~nightly", f"{run_id(spec, 0)}~each"
    assert begins(ledger, step, [1], {}).refusal is Refusal.DIFFERS
    granted = begins(ledger, step, [1], {"a": "${SECRET}"})
    assert granted.references == ("args", "kwargs")
    first, second = ledger.steps.expand(batch, ["a", {"b": 1}])
    assert begins(ledger, second, ["a", "all"], {}, task="proj.each").refusal is Refusal.DIFFERS
    for item, value in ((first, "a"), (second, {"b": 1})):
        assert begins(ledger, item, [value], {}, task="proj.each").refusal is Refusal.DIFFERS
        assert isinstance(begins(ledger, item, [value, "all"], {}, task="proj.each"), Grant)


def test_a_step_that_is_tried_often_begins_each_time(ledger: Ledger) -> None:
    spec = job(ledger, task=None, steps=[{"task": TASK, "priority": 1, "args": [1]}])
    ledger.admit(ticks(spec, 0))
    step = f"{run_id(spec, 0)}~nightly"
    for token in ("first", "second", "third"):
        assert isinstance(begins(ledger, step, [1], {}, token=token), Grant)
        ledger.retry(step, token, timedelta())
        ledger.rescue()


class Adds(Task):  # type: ignore[type-arg]
    """A task that gives each of its messages an argument of the process that sends it."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return super().apply_async(args, {**(kwargs or {}), "by": "beat"}, **options)


def test_an_app_may_change_its_messages(ledger: Ledger, app: Celery) -> None:
    @app.task(name=TASK, base=Adds, shared=False)
    def nightly(by: str) -> None: ...

    spec = job(ledger)
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    assert begins(ledger, run, [], {"by": "beat"}).refusal is Refusal.DIFFERS
    assert publisher_of(app).publish([run]) == 1
    assert begins(ledger, run, [], {"by": "another"}).refusal is Refusal.DIFFERS
    assert begins(ledger, run, [1], {"by": "beat"}).refusal is Refusal.DIFFERS
    assert isinstance(begins(ledger, run, [], {"by": "beat"}), Grant)


@contextmanager
def heard(signal: Any, handler: Callable[..., None]) -> Iterator[None]:
    signal.connect(handler)
    try:
        yield
    finally:
        signal.disconnect(handler)


@pytest.mark.parametrize("registered", [True, False], ids=["known task", "unknown task"])
def test_a_handler_may_change_arguments_in_place(
    ledger: Ledger, app: Celery, registered: bool
) -> None:
    if registered:

        @app.task(name=TASK, shared=False)
        def nightly(context: Any) -> None: ...

    def stamp(body: Any, **_: Any) -> None:
        body[1]["context"]["tenant"] = "a"

    spec = job(ledger, kwargs={"context": {"tree": "docs"}}, overlap="allow")
    ledger.admit(ticks(spec, 0, 1))
    both = [run_id(spec, second) for second in (0, 1)]
    with heard(signals.before_task_publish, stamp):
        assert publisher_of(app).publish(both) == 2
    for run in both:
        said = {"context": {"tree": "docs", "tenant": "a"}}
        assert isinstance(begins(ledger, run, [], said, token=run), Grant)


def test_a_number_of_another_type_is_a_change(ledger: Ledger, app: Celery) -> None:
    def convert(body: Any, **_: Any) -> None:
        body[1]["number"] = 1.0

    spec = job(ledger, kwargs={"number": 1})
    ledger.admit(ticks(spec, 0))
    with heard(signals.before_task_publish, convert):
        assert publisher_of(app).publish([run_id(spec, 0)]) == 1
    assert isinstance(begins(ledger, run_id(spec, 0), [], {"number": 1.0}), Grant)


def test_a_handler_in_a_worker_may_change_arguments_in_place(
    ledger: Ledger, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = []

    @app.task(name=TASK, shared=False)
    def nightly(**given: Any) -> None:
        bodies.append(given)

    def drop(kwargs: Any, **_: Any) -> None:
        del kwargs["trace"]

    spec = job(ledger, kwargs={"tree": "docs", "trace": "7"})
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    assert publisher_of(app).publish([run]) == 1
    message = taken(ledger.client)
    body, headers = b64decode(message["body"]), message["headers"]
    monkeypatch.setattr(_state._tls, "current_app", app)
    with heard(signals.task_prerun, drop):
        trace_run(TASK, run, headers, body, message["content-type"], message["content-encoding"])
    assert bodies == [{"tree": "docs"}]
    assert ledger.run(run).state is RunState.SUCCEEDED


@pytest.mark.parametrize("value", [MIDNIGHT, float("inf")], ids=str)
def test_a_value_that_json_does_not_have_is_compared_as_it_is_read_back(
    ledger: Ledger, entries: Entries, value: Any
) -> None:
    spec = loaded(ledger, entries, nightly={"args": [value]})["nightly"]
    ledger.admit(ticks(spec, 0))
    said = ledger.spec("nightly").args
    assert isinstance(begins(ledger, run_id(spec, 0), said, {}), Grant)


def test_a_date_of_a_caller_is_not_compared(ledger: Ledger) -> None:
    """Kombu may write it in another way than it was read."""
    run = ledger.trigger(job(ledger), RunRequest(args=[as_json(MIDNIGHT)])).id
    assert isinstance(begins(ledger, run, [MIDNIGHT.isoformat()], {}), Grant)


def test_a_call_of_a_guarded_task_has_its_own_arguments(ledger: Ledger, app: Celery) -> None:
    @app.task(name=TASK, guard={"overlap": "skip"}, ignore_result=True, shared=False)
    def nightly(number: int) -> None: ...

    run = nightly.delay(7).id
    assert begins(ledger, run, [8], {}).refusal is Refusal.DIFFERS
    assert begins(ledger, run, [7], {}, task="proj.other").refusal is Refusal.DIFFERS
    assert isinstance(begins(ledger, run, [7], {}), Grant)


def test_the_ledger_says_which_arguments_have_references(ledger: Ledger) -> None:
    spec = job(ledger, args=["${A}"], kwargs={"plain": "b"}, overlap="allow")
    ledger.admit(ticks(spec, 0))
    assert begins(ledger, run_id(spec, 0), ["${A}"], {"plain": "b"}).references == ("args",)
    run = ledger.trigger(spec, RunRequest(args=["${A}"])).id
    assert begins(ledger, run, ["${A}"], {"plain": "b"}).references == ()
