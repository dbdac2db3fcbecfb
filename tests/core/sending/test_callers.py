"""What an app's code writes into a message of its caller stays, whichever process sends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

import pytest
import redis
from celery import Celery, Task, signals

from supervisor import jobs
from supervisor.app import supervise
from supervisor.errors import NoQueue
from supervisor.job.run import RunState
from supervisor.ledger.actions import Actor
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import CallArguments
from supervisor.operate import repeating
from supervisor.sending.publisher import publisher_of
from supervisor.sending.starting import start
from tests.jobs import begin, job, ticks, with_messages
from tests.waiting import wait_until

tenant: ContextVar[str] = ContextVar("tenant", default="public")

Way = Callable[[str], Celery]


class OwnCelery(Celery):
    def send_task(self, *args: Any, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": tenant.get()}
        return super().send_task(*args, **options)


class OwnTask(Task):  # type: ignore[type-arg]
    def apply_async(self, *args: Any, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": tenant.get()}
        return super().apply_async(*args, **options)


@pytest.fixture
def handler() -> Iterator[Any]:
    def add(headers: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = tenant.get()

    yield add
    signals.before_task_publish.disconnect(add)


@pytest.fixture(params=["send_task", "apply_async", "handler"])
def app(request: pytest.FixtureRequest, redis_url: str, handler: Any) -> Celery:
    kind = OwnCelery if request.param == "send_task" else Celery
    options = {"task_cls": OwnTask} if request.param == "apply_async" else {}
    app = supervise(kind("callers", broker=redis_url, set_as_current=False, **options))
    if request.param == "handler":
        signals.before_task_publish.connect(handler)
    return app


@contextmanager
def within(name: str) -> Iterator[None]:
    token = tenant.set(name)
    try:
        yield
    finally:
        tenant.reset(token)


def guarded(app: Celery) -> Any:
    def work(number: int) -> None: ...

    guard = {"overlap": "queue_all", "max_retries": 3}
    return app.task(name="callers.work", guard=guard, ignore_result=True, shared=False)(work)


def count_stock() -> None: ...


def tenants(ledger: Ledger, broker: Any = None) -> list[tuple[str, str]]:
    """Id and tenant of each message in the queue, first sent first."""
    messages = map(json.loads, reversed((broker or ledger.client).lrange("celery", 0, -1)))
    return [(m["headers"]["id"], m["headers"].get("tenant")) for m in messages]


def test_a_call_that_waits_is_its_callers(app: Celery, ledger: Ledger) -> None:
    task, publisher = guarded(app), publisher_of(app)
    with within("t1"):
        first = task.delay(1).id
    with within("t2"):
        second = task.delay(2)
    assert second.admission.placement is Placement.WAIT
    begin(ledger, first)
    publisher.publish(ledger.finish(first, "token", RunState.SUCCEEDED).to_publish)
    assert tenants(ledger) == [(first, "t1"), (second.id, "t2")]


def other_database(url: str) -> str:
    place, _, database = url.rpartition("/")
    return f"{place}/{15 - int(database)}"


@pytest.fixture
def elsewhere(redis_url: str) -> Iterator[redis.Redis]:
    """The broker of `apart`, beside which no ledger is."""
    with redis.Redis.from_url(other_database(redis_url)) as broker:
        broker.flushdb()
        yield broker
        broker.flushdb()


@pytest.fixture
def apart(redis_url: str) -> Celery:
    at = {"broker": other_database(redis_url), "backend": "cache+memory://"}
    return supervise(Celery("callers", set_as_current=False, **at), redis_url=redis_url)


def test_a_call_by_a_broker_elsewhere_is_its_callers(
    apart: Celery, ledger: Ledger, elsewhere: redis.Redis, handler: Any
) -> None:
    signals.before_task_publish.connect(handler)
    task, publisher = guarded(apart), publisher_of(apart)
    with within("t1"):
        first = task.delay(1).id
    with within("t2"):
        second = task.apply_async((2,), headers={"own": "t2's"}).id
    with within("beat's"):
        begin(ledger, first)
        publisher.publish(ledger.finish(first, "token", RunState.SUCCEEDED).to_publish)
    assert tenants(ledger, elsewhere) == [(first, "t1"), (second, "t2")]
    assert json.loads(elsewhere.lindex("celery", 0))["headers"]["own"] == "t2's"
    assert ledger.run(second).message is None


def test_a_retrys_headers_are_beside_its_callers(
    apart: Celery, ledger: Ledger, elsewhere: redis.Redis, handler: Any
) -> None:
    signals.before_task_publish.connect(handler)
    task, publisher = guarded(apart), publisher_of(apart)
    with within("t1"):
        run = task.apply_async((1,), headers={"own": "1"}).id
    begin(ledger, run)
    more = CallArguments(options={"headers": {"more": "2"}})
    ledger.retry(run, "token", timedelta(), arguments=more)
    due(ledger, run)
    publisher.publish(ledger.outbox())
    assert tenants(ledger, elsewhere) == [(run, "t1")] * 2
    headers = json.loads(elsewhere.lindex("celery", 0))["headers"]
    assert (headers["own"], headers["more"]) == ("1", "2")


def test_a_retry_may_give_none_as_its_headers(app: Celery, ledger: Ledger) -> None:
    task, publisher = guarded(app), publisher_of(app)
    run = task.delay(1).id
    begin(ledger, run)
    ledger.retry(run, "token", timedelta(), arguments=CallArguments(options={"headers": None}))
    due(ledger, run)
    assert publisher.publish(ledger.outbox()) == 1


def test_a_header_reaches_kombu_as_the_caller_gave_it(
    apart: Celery, ledger: Ledger, elsewhere: redis.Redis, handler: Any
) -> None:
    """To RabbitMQ a time is no JSON."""
    since, seen = datetime(2026, 3, 1, 9, 5, tzinfo=UTC), []
    see = signals.before_task_publish.connect(lambda headers, **_: seen.append(headers), weak=False)
    try:
        guarded(apart).apply_async((1,), headers={"since": since})
    finally:
        signals.before_task_publish.disconnect(see)
    assert [headers["since"] for headers in seen] == [since, since]


def test_celery_makes_a_call_once_where_the_app_has_no_say_in_it(
    apart: Celery, ledger: Ledger, elsewhere: redis.Redis
) -> None:
    apart.conf.task_create_missing_queues = False
    task = guarded(apart)
    made: list[str] = []
    task.ignore_result = False
    apart.backend.on_task_call = lambda _, task_id: made.append(task_id)
    call = task.delay(1)
    assert (made, elsewhere.llen("celery")) == ([call.id], 1)
    with pytest.raises(NoQueue):
        task.apply_async((1,), queue="celary")
    with pytest.raises(TypeError):
        task.delay()
    assert ledger.history(task.name) == [ledger.run(call.id)]


def is_celerys(event: dict[str, Any]) -> bool:
    return bool(event["data"] != b"the last")


def test_a_call_is_one_event_by_a_broker_elsewhere(
    apart: Celery, ledger: Ledger, elsewhere: redis.Redis
) -> None:
    apart.conf.task_send_sent_event = True
    task = guarded(apart)
    with elsewhere.pubsub() as events:
        events.psubscribe("*celeryev*")
        task.delay(1)
        elsewhere.publish("celeryev", "the last")
        seen = [event["type"] for event in takewhile(is_celerys, events.listen())]
    assert (elsewhere.llen("celery"), seen) == (1, ["psubscribe", "pmessage"])


def due(ledger: Ledger, run: str) -> None:
    wait_until(lambda: ledger.rescue() and ledger.run(run).state is RunState.QUEUED)


def test_retries_and_rescued_runs_are_their_callers(app: Celery, ledger: Ledger) -> None:
    task, publisher = guarded(app), publisher_of(app)
    with within("t1"):
        run = task.delay(1).id
    begin(ledger, run, "a")
    ledger.retry(run, "a", timedelta())
    due(ledger, run)
    publisher.publish(ledger.outbox())
    begin(ledger, run, "b")
    publisher.publish(ledger.finish(run, "b", RunState.LOST).to_publish)
    begin(ledger, run, "c")
    ledger.retry(run, "c", timedelta(), arguments=CallArguments(args=[7], options={"priority": 0}))
    due(ledger, run)
    publisher.publish(ledger.outbox())
    assert tenants(ledger) == [(run, "t1")] * 4


def test_a_call_that_is_run_again_is_its_callers(app: Celery, ledger: Ledger) -> None:
    """With the arguments and the key of the call, and without its place in a canvas."""
    task, publisher = guarded(app), publisher_of(app)
    with within("t1"):
        call = task.apply_async((7,), headers={"guard": {"key": "of t1"}}, root_id="canvas")
    begin(ledger, call.id)
    ledger.finish(call.id, "token", RunState.FAILED)
    again = repeating.retry(ledger, call.id, by=Actor("ann", "cli")).run
    assert again
    publisher.publish(ledger.outbox())
    assert tenants(ledger) == [(call.id, "t1"), (again.id, "t1")]
    assert (again.args, again.rules.lock) == ([7], "of t1")
    assert "root_id" not in again.options
    begin(ledger, again.id)
    ledger.finish(again.id, "token", RunState.SUCCEEDED)
    assert (ledger.run(call.id).message is None, ledger.run(again.id).message) == (False, None)


def test_the_steps_of_a_run_are_its_callers(app: Celery, ledger: Ledger) -> None:
    publisher = publisher_of(app)
    app.task(name="callers.step", shared=False)(count_stock)
    many = {"task": "callers.step", "priority": 2, "name": "many", "foreach": "items"}
    steps = [("callers.step", 3), many, {"task": "callers.step", "priority": 1, "name": "last"}]
    with within("t1"):
        run = start(steps, {"items": [1, 2]}, app=app)
    sent = [f"{run}~step", f"{run}~many#0", f"{run}~many#1", f"{run}~last"]
    for step in sent[:3]:
        begin(ledger, step)
        publisher.publish(ledger.finish(step, "token", RunState.SUCCEEDED).to_publish)
    assert tenants(ledger) == [(step, "t1") for step in sent]


def test_a_triggered_run_is_its_callers_and_a_tick_is_beats(app: Celery, ledger: Ledger) -> None:
    app.task(name="callers.job", shared=False)(count_stock)
    spec = job(ledger, task="callers.job", overlap="allow")
    with_messages(ledger, app)
    with within("t1"):
        run = jobs.trigger(spec.name, app=app)
    with within("beat's"):
        [tick] = ticks(spec, 1)
        ledger.admit([tick])
        publisher_of(app).publish(ledger.outbox())
    assert {*tenants(ledger)} == {(run, "t1"), (tick.run_id, "beat's")}
