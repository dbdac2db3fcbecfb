"""Messages that are sent where runs are admitted: what Celery would send, or nothing."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery, Task, signals
from kombu.utils.json import loads

from supervisor.app import supervise
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Grant, Placement
from supervisor.ledger.requests import Message, RunRequest, Tick
from supervisor.sending.content import content_of
from supervisor.sending.messages import PrebuiltMessages
from supervisor.sending.publisher import Publisher
from tests.ledger.jobs import MIDNIGHT, admit_sent, job, ticks
from tests.waiting import wait_until


def app_on(url: str) -> Celery:
    app = supervise(Celery("shop", broker=url))
    app.conf.task_routes = {"shop.routed": {"queue": "elsewhere", "priority": 3}}

    @app.task(shared=False, name="shop.plain")
    def plain(*args: Any, **kwargs: Any) -> None: ...

    @app.task(shared=False, name="shop.routed", ignore_result=True)
    def routed() -> None: ...

    @app.task(shared=False, name="shop.one_argument")
    def one_argument(argument: Any) -> None: ...

    @app.task(shared=False, name="shop.expires", expires=60)
    def expires() -> None: ...

    class Own(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return super().apply_async(*args, **options)

    @app.task(shared=False, name="shop.own", base=Own)
    def own() -> None: ...

    return app


def prebuilt_of(app: Celery, ledger: Ledger) -> PrebuiltMessages:
    return Publisher(app, ledger).prebuilt


def sent(client: Any, queue: str) -> list[Any]:
    """What is in a queue, without what no two messages share, first sent first."""
    messages = [json.loads(text) for text in client.lrange(queue, 0, -1)]
    for message in messages:
        del message["properties"]["delivery_tag"]
    return messages[::-1]


JOBS: list[tuple[str, dict[str, Any]]] = [
    ("celery", {"task": "shop.plain"}),
    ("celery", {"task": "shop.plain", "args": [1, 'ä"<'], "kwargs": {"deep": [{"a": None}]}}),
    ("celery", {"task": "shop.plain", "args": ["it's", True, 1.5, -0.0, 10**30, "é\n\\", "%s"]}),
    ("celery", {"task": "shop.plain", "kwargs": {"it's": "%(run)s", "b": None, "c": []}}),
    ("celery", {"task": "shop.plain", "args": ["x" * 500, "y" * 530], "history": 7}),
    ("celery", {"task": "shop.unknown", "args": ["x" * 3000], "lease_ttl": "5s"}),
    ("serial.some-job", {"task": "shop.plain", "name": "some-job", "serial": True}),
    ("elsewhere\x06\x163", {"task": "shop.routed", "time_limit": "9s", "soft_time_limit": "3s"}),
    ("celery\x06\x166", {"task": "shop.plain", "priority": 7}),
    ("elsewhere", {"task": "shop.routed", "priority": 0}),
    ("serial.reports\x06\x169", {"task": "shop.plain", "serial": "reports", "priority": 9}),
    ("serial.reports", {"task": "shop.plain", "serial": "reports", "max_retries": 4}),
    ("own", {"task": "shop.plain", "queue": "own", "key": "feed:{url}", "kwargs": {"url": "a"}}),
]


@pytest.mark.parametrize(("queue", "keys"), JOBS, ids=str)
def test_a_message_is_the_one_that_celery_would_send(
    ledger: Ledger, redis_url: str, queue: str, keys: dict[str, Any]
) -> None:
    app, spec = app_on(redis_url), job(ledger, **keys)
    prebuilt = prebuilt_of(app, ledger)
    other = spec.model_copy(update={"name": "other", "args": ("another",), "kwargs": {}})
    [first], [tick] = ticks(other, 0), ticks(spec, 0)
    prebuilt.message_for_ledger(
        first
    )  # the shape is made of this one, if its task takes the arguments
    admit_sent(ledger, [tick], prebuilt.message_for_ledger)
    assert ledger.run(tick.run_id).sends == 1
    Publisher(app, ledger).publish([tick.run_id])
    as_prebuilt, from_celery = sent(ledger.client, queue)
    assert as_prebuilt == from_celery


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        ("datetime", "2026-03-01T00:00:00Z"),
        ("datetime", "2026-03-01T00:00:00.123456789+00:00"),
        ("date", "20260301"),
        ("uuid", {"hex": "7babf657-f942-4a24-90b2-be8860cbcc39"}),
        ("base64", "YWJj"),
    ],
    ids=str,
)
def test_a_value_that_kombu_writes_otherwise_differs_from_no_job(
    ledger: Ledger, redis_url: str, mark: str, value: Any
) -> None:
    app = app_on(redis_url)
    prebuilt, publisher = prebuilt_of(app, ledger), Publisher(app, ledger)
    spec = job(ledger, task="shop.plain", args=[{"__type__": mark, "__value__": value}])
    [tick] = ticks(spec, 0)
    admit_sent(ledger, [tick], prebuilt.message_for_ledger)
    publisher.publish([tick.run_id])
    bodies = [loads(b64decode(message["body"])) for message in sent(ledger.client, "celery")]
    assert len(bodies) == 2
    for args, kwargs, _ in bodies:
        content = content_of(tick.run_id, "shop.plain", args, kwargs)
        assert isinstance(ledger.begin(tick.run_id, "token", "worker", content=content), Grant)


OTHERS: list[dict[str, Any]] = [
    *({"task": task} for task in ("shop.expires", "shop.own", "shop.one_argument")),
    {"task": "shop.plain", "args": ["${PASSWORD}"]},
    {"task": "shop.plain", "kwargs": {"password": "x"}, "mask": ["password"]},
]


@pytest.mark.parametrize("keys", OTHERS, ids=str)
def test_what_may_differ_or_be_refused_goes_through_the_outbox(
    ledger: Ledger, redis_url: str, keys: dict[str, Any]
) -> None:
    prebuilt, spec = prebuilt_of(app_on(redis_url), ledger), job(ledger, **keys)
    other = spec.model_copy(update={"name": "other", "args": (1,), "kwargs": {}, "mask": False})
    prebuilt.message_for_ledger(Tick(other, MIDNIGHT))
    admit_sent(ledger, ticks(spec, 0), prebuilt.message_for_ledger)
    assert ledger.outbox() == [tick.run_id for tick in ticks(spec, 0)]
    assert ledger.client.llen("celery") == 0


def test_an_alias_of_a_task_goes_through_the_outbox(ledger: Ledger, redis_url: str) -> None:
    """Celery writes the name of the task, which the ledger has to be told."""
    app, spec = app_on(redis_url), job(ledger, task="shop.alias")
    app.tasks["shop.alias"] = app.tasks["shop.plain"]
    admit_sent(ledger, ticks(spec, 0), prebuilt_of(app, ledger).message_for_ledger)
    [run] = ledger.outbox()
    assert Publisher(app, ledger).publish([run]) == 1
    content = content_of(run, "shop.plain", [], {})
    assert isinstance(ledger.begin(run, "token", "worker", content=content), Grant)


def test_jobs_that_differ_in_their_priority_alone_go_to_different_lists(
    ledger: Ledger, redis_url: str
) -> None:
    prebuilt = prebuilt_of(app_on(redis_url), ledger)
    for name, priority in (("a", 0), ("b", 5), ("c", None), ("d", 9)):
        spec = job(ledger, name, priority=priority)
        admit_sent(ledger, ticks(spec, 0), prebuilt.message_for_ledger)
    lists = ["celery", "celery\x06\x163", "celery\x06\x166", "celery\x06\x169"]
    assert [ledger.client.llen(name) for name in lists] == [2, 1, 0, 1]
    [message] = sent(ledger.client, "celery\x06\x169")
    assert message["properties"]["priority"] == 9


def test_steps_and_calls_have_the_priority_of_their_job(ledger: Ledger, redis_url: str) -> None:
    publisher = Publisher(app_on(redis_url), ledger)
    steps = [{"task": "shop.plain", "priority": 900}]
    spec = job(ledger, "steps", task=None, steps=steps, priority=6)
    [admission] = ledger.admit(ticks(spec, 0))
    by_hand = ledger.trigger(job(ledger, "plain", priority=6), RunRequest(options={"priority": 3}))
    publisher.publish([admission.run_id, by_hand.id])
    [step] = sent(ledger.client, "celery\x06\x166")
    assert (step["headers"]["id"], step["properties"]["priority"]) == (
        f"{admission.run_id}/plain",
        6,
    )
    [other] = sent(ledger.client, "celery\x06\x163")
    assert other["headers"]["id"] == by_hand.id


def test_who_listens_to_messages_hears_of_each(ledger: Ledger, redis_url: str) -> None:
    prebuilt, [tick] = prebuilt_of(app_on(redis_url), ledger), ticks(job(ledger), 0)

    def listen(**_: Any) -> None: ...

    signals.before_task_publish.connect(listen)
    try:
        assert prebuilt.message_for_ledger(tick) is None
    finally:
        signals.before_task_publish.disconnect(listen)
    assert prebuilt.message_for_ledger(tick)


def test_a_router_of_code_is_asked_for_each_message(ledger: Ledger, redis_url: str) -> None:
    app = app_on(redis_url)
    app.conf.task_routes = lambda *_, **__: {"queue": "any"}
    [tick] = ticks(job(ledger), 0)
    assert prebuilt_of(app, ledger).message_for_ledger(tick) is None


@pytest.fixture
def elsewhere(redis_url: str) -> Iterator[redis.Redis]:
    """Another Redis, as far as the ledger knows."""
    place, _, database = redis_url.rpartition("/")
    with redis.Redis.from_url(f"{place}/{15 - int(database)}", decode_responses=True) as client:
        client.flushdb()
        yield client
        client.flushdb()


def app_elsewhere(elsewhere: redis.Redis, redis_url: str, **conf: Any) -> Celery:
    place, _, _ = redis_url.rpartition("/")
    app = app_on(f"{place}/{elsewhere.connection_pool.connection_kwargs['db']}")
    app.conf.update(conf)
    return supervise(app, redis_url=redis_url)


def admitted(ledger: Ledger, prebuilt: PrebuiltMessages, *specs: JobSpec) -> list[Tick]:
    """The first tick of each job; its message is not for the ledger to send."""
    found = [tick for spec in specs for tick in ticks(spec, 0)]
    assert [*map(prebuilt.message_for_ledger, found)] == [None] * len(specs)
    ledger.admit(found)
    return found


def test_what_another_redis_refuses_is_left_in_the_outbox(
    ledger: Ledger, redis_url: str, elsewhere: redis.Redis
) -> None:
    publisher = Publisher(app_elsewhere(elsewhere, redis_url), ledger)
    specs = [job(ledger, name, queue=name, overlap="allow") for name in ("broken", "a", "b")]
    admitted(ledger, publisher.prebuilt, *specs)
    assert publisher.publish(ledger.outbox()) == 3
    elsewhere.delete("broken")
    elsewhere.set("broken", "no list")
    broken, *others = [tick for spec in specs for tick in ticks(spec, 1)]
    ledger.admit([broken, *others])
    publisher.publish(ledger.outbox())
    assert broken.run_id in ledger.outbox()
    assert [elsewhere.llen(queue) for queue in ("a", "b")] == [2, 2]


def test_messages_whose_turn_has_not_come_in_time_stay_in_the_outbox(
    ledger: Ledger, redis_url: str, elsewhere: redis.Redis
) -> None:
    publisher = Publisher(app_elsewhere(elsewhere, redis_url), ledger)
    found = admitted(ledger, publisher.prebuilt, *(job(ledger, name) for name in "abcde"))
    until = time.monotonic() + 5
    heard: list[str] = []

    def take_long(headers: dict[str, Any], **_: Any) -> None:
        heard.append(headers["id"])
        if len(heard) == 2:
            wait_until(lambda: time.monotonic() > until)

    signals.before_task_publish.connect(take_long)
    try:
        assert publisher.publish(ledger.outbox(), until) == 2
    finally:
        signals.before_task_publish.disconnect(take_long)
    assert {*ledger.outbox()} == {tick.run_id for tick in found} - {*heard}


def test_a_broker_elsewhere_is_not_asked_while_runs_are_admitted(
    ledger: Ledger, redis_url: str
) -> None:
    app = supervise(app_on("redis://127.0.0.1:1/0"), redis_url=redis_url)
    app.conf.broker_transport_options = {"max_retries": 0}
    publisher = Publisher(app, ledger)
    found = admitted(ledger, publisher.prebuilt, *(job(ledger, name) for name in "ab"))
    assert publisher.publish(ledger.outbox()) == 0
    assert sorted(ledger.outbox()) == sorted(tick.run_id for tick in found)


def test_an_edited_job_has_another_message(ledger: Ledger, redis_url: str) -> None:
    prebuilt, spec = prebuilt_of(app_on(redis_url), ledger), job(ledger)
    edited = spec.model_copy(update={"queue": "another"})
    messages = [prebuilt.message_for_ledger(Tick(s, MIDNIGHT)) for s in (spec, edited)]
    assert [message and message.queue for message in messages] == ["celery", "another"]


def test_only_a_run_that_starts_is_sent(ledger: Ledger) -> None:
    spec = job(ledger)
    all_ticks = ticks(spec, 0, 0, 1)
    admissions = admit_sent(ledger, all_ticks, lambda t: Message("queue", "list", t.run_id))
    placed = [admission.placement for admission in admissions]
    assert placed == [Placement.START, Placement.DUPLICATE, Placement.SKIP]
    assert ledger.client.lrange("list", 0, -1) == [all_ticks[0].run_id]
    assert ledger.outbox() == []
    run = ledger.run(all_ticks[0].run_id)
    assert (run.state, run.queue) == (RunState.QUEUED, "queue")
    assert [run.id for run in ledger.sent_runs(10)] == [all_ticks[0].run_id]
