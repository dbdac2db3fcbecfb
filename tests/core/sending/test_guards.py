"""The guards of tasks and of calls, and the instants that calls give."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from celery.utils.time import maybe_make_aware
from pydantic import BaseModel

from supervisor.app import supervise
from supervisor.catalog.guards import GuardedCall, guarded_task_spec
from supervisor.errors import InvalidGuard
from supervisor.features.on_commit.trigger import trigger_of
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run_ids import StepId, is_below
from supervisor.sending import calls
from supervisor.sending.calls import request_of
from supervisor.sending.starting import start
from supervisor.worker import retries
from tools.matrix import since


@pytest.fixture
def app() -> Celery:
    return supervise(Celery("team", set_as_current=False))


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
        *("'every' is not for calls from code", "'overlap': 'queue' is not one of"),
        *("unknown key 'lease'", "'max_running'"),
    ):
        assert any(words in problem for problem in caught.value.problems), words


@pytest.mark.parametrize(
    ("guard", "what"),
    [
        ("skip", "neither True nor a mapping"),
        ({"key": "{a.b}"}, "'key': {a.b} is neither a name nor a position"),
        ({"key": 5}, "'key': 5 is not text"),
        ({"key": ""}, "'key': ''"),
    ],
)
def test_a_guard_that_is_no_guard_is_refused(guard: Any, what: str) -> None:
    with pytest.raises(InvalidGuard, match=what):
        guarded_task_spec("proj.import_feed", guard)


def test_a_key_of_parameters_that_the_task_lacks_is_an_invalid_guard(app: Celery) -> None:
    @app.task(guard={"key": "{fed}"}, shared=False)
    def work(feed: str, full: bool = False) -> None: ...

    with pytest.raises(InvalidGuard, match=r"'key': no argument 'fed'.*'feed'"):
        work.delay("a")


@pytest.mark.parametrize("option", ["key", "overlap", "max_wait"])
def test_an_option_that_belongs_in_the_header_is_refused(app: Celery, option: str) -> None:
    """Celery takes any option, and would drop these without a word."""

    @app.task(guard=True, shared=False)
    def work() -> None: ...

    with pytest.raises(InvalidGuard, match=f"'{option}' belongs in headers="):
        work.apply_async(**{option: "skip"})


def test_a_call_says_key_policy_and_timeout() -> None:
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
        ({"overlap": "sometimes"}, "is not one of skip, queue_one"),
        ({"max_wait": "soon"}, "'max_wait': 'soon' is not a duration"),
        ({"key": ""}, "'key': ''"),
        ("skip", "neither True nor a mapping"),
    ],
)
def test_a_call_that_says_nonsense_is_refused(header: Any, what: str) -> None:
    with pytest.raises(InvalidGuard, match=what):
        GuardedCall.of(header, "proj.t")


@pytest.mark.parametrize("run_id", ["me@example.org~42", "nightly@2026-03-01T02:00:00Z~a#1"])
def test_a_call_cannot_have_the_id_of_a_step(app: Celery, run_id: str) -> None:
    @app.task(guard=True, shared=False)
    def work() -> None: ...

    with pytest.raises(InvalidGuard, match="is that of a step"):
        request_of(work, (), {}, run_id, {})


@pytest.mark.parametrize("run_id", ["me@example.org", "imports~42", "a~b@c~d"])
def test_any_other_id_is_a_callers_to_choose(run_id: str) -> None:
    assert not is_below(run_id)


@pytest.mark.parametrize("run_id", ["order-17", "orders~17@x", "documents@orders~17"])
def test_a_started_run_has_an_id_that_its_steps_can_be_told_by(app: Celery, run_id: str) -> None:
    with pytest.raises(InvalidGuard, match="is no id for it: such as 'a-b@order-17'"):
        start([("proj.a", 2), ("proj.b", 1)], run_id=run_id, app=app)


@pytest.mark.parametrize("step", [("proj.b",), "proj.b", ["proj.b"]])
def test_a_step_to_start_without_a_priority_is_told_of(app: Celery, step: Any) -> None:
    with pytest.raises(InvalidGuard, match="step 2: 'priority' is missing"):
        start([("proj.a", 2), step], app=app)


def test_a_step_to_start_is_a_task_and_its_priority_and_no_more(app: Celery) -> None:
    with pytest.raises(InvalidGuard, match=r"\('proj.b', 1, 60\) is more than .* use a mapping"):
        start([("proj.a", 2), ("proj.b", 1, 60)], app=app)


class Order(BaseModel):
    number: int


@since("celery", "5.7", "a model among the arguments is no JSON")
def test_a_model_may_be_handed_on_after_a_commit() -> None:
    app = Celery("orders", set_as_current=False, broker="redis://127.0.0.1:1/0")
    supervise(app)

    @app.task(guard=True, shared=False, pydantic=True)
    def pack(order: Order) -> None: ...

    trigger = trigger_of(pack, (Order(number=3),), None, None, {})
    assert trigger.fields["args"] == ({"number": 3},)


# Instants without an offset are read as Celery reads them.

IN_AN_HOUR = timedelta(hours=1)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def naive() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None) + IN_AN_HOUR


def is_in_an_hour(delay: timedelta | None) -> bool:
    return delay is not None and abs(delay - IN_AN_HOUR) < timedelta(seconds=10)


def test_a_retry_at_a_naive_time_is_at_that_time_in_utc(zone: str) -> None:
    assert is_in_an_hour(retries.delay_of(naive(), None, 0))
    assert is_in_an_hour(retries.delay_of(naive().replace(tzinfo=UTC), None, 0))
    # So does Celery's worker, whose app's zone is the last word only for what it shows.
    assert is_in_an_hour(maybe_make_aware(naive(), zone) - datetime.now(UTC))


def test_a_call_for_a_naive_time_is_for_that_time_in_utc(zone: str) -> None:
    app = Celery("team", set_as_current=False)
    app.conf.timezone = zone
    assert is_in_an_hour(calls.until(naive()))
    assert is_in_an_hour(calls.until(naive().replace(tzinfo=UTC)))


def test_a_retry_for_a_time_that_has_passed_is_due_now() -> None:
    assert retries.delay_of(datetime.now(UTC) - IN_AN_HOUR, None, 0) == timedelta()


def test_ids_of_steps_are_names_for_files_and_urls(tmp_path: Path) -> None:
    """Result backends and pages use them so; Celery's own for files takes them as they are."""
    step = StepId("nightly@2026-03-01T02:00:00Z", "load").batch
    with Celery("proj", backend=f"file://{tmp_path}", set_as_current=False) as app:
        app.backend.store_result(step, {"rows": 1}, "SUCCESS")
        assert app.AsyncResult(step).result == {"rows": 1}
    assert quote(step, safe="@:") == step
