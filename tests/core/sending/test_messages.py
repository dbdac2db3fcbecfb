"""Messages that the ledger sends are those that Celery would send; the others Celery sends."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery, Task, signals, signature
from kombu import Exchange, Queue
from kombu.utils.json import loads

from supervisor.app import supervise
from supervisor.guard.delivery import HEADER, RETRIES
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Grant
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.schedule.ticks import Tick
from supervisor.sending.content import content_of
from supervisor.sending.publisher import Publisher
from supervisor.sending.templates import ELSEWHERE
from tests.damage import lose, tear
from tests.jobs import begin, job, run_id, ticks, with_messages
from tests.queues import take_all
from tests.waiting import scaled, wait_until


def why_apart(ledger: Ledger, spec: JobSpec) -> str | None:
    """Why Celery has to make the message of each run; None where the ledger sends them."""
    return ledger.client.hget(ledger.keys.job(spec.name), "apart")


def app_on(url: str) -> Celery:
    return with_tasks(supervise(Celery("shop", broker=url)))


def with_tasks(app: Celery) -> Celery:
    app.conf.task_routes = {"shop.routed": {"queue": "elsewhere", "priority": 3}}

    @app.task(shared=False, name="shop.plain")
    def plain(*args: Any, **kwargs: Any) -> None: ...

    @app.task(shared=False, name="shop.routed", ignore_result=True)
    def routed() -> None: ...

    @app.task(shared=False, name="shop.one_argument")
    def one_argument(argument: Any) -> None: ...

    @app.task(shared=False, name="shop.compressed", compression="bzip2")
    def compressed() -> None: ...

    @app.task(shared=False, name="shop.expires", expires=60)
    def expires() -> None: ...

    class Own(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return super().apply_async(*args, **options)

    @app.task(shared=False, name="shop.own", base=Own)
    def own() -> None: ...

    return app


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
def test_the_message_of_a_tick_is_the_one_that_celery_would_send(
    ledger: Ledger, redis_url: str, queue: str, keys: dict[str, Any]
) -> None:
    app, spec = app_on(redis_url), job(ledger, **keys)
    with_messages(ledger, app)
    [tick] = ticks(spec, 0)
    ledger.admit([tick])
    assert (ledger.run(tick.run_id).sends, ledger.outbox()) == (1, [])
    Publisher(app, ledger).publish([tick.run_id])
    pushed, from_celery = sent(ledger.client, queue)
    assert pushed == from_celery
    assert pushed["headers"]["periodic_task_name"] == spec.name


CONF: list[dict[str, Any]] = [
    {"task_compression": "gzip"},
    {"task_default_delivery_mode": "transient", "task_default_priority": 5},
    {"task_ignore_result": True, "task_time_limit": 7},
    {"broker_transport_options": {"global_keyprefix": "own:"}},
    {"task_queues": [Queue("celery", Exchange("jobs"), routing_key="of-jobs")]},
    {"task_serializer": "yaml", "accept_content": ["yaml", "json"]},
    {"task_serializer": "msgpack", "accept_content": ["msgpack", "json"]},
]


@pytest.mark.parametrize("conf", CONF, ids=str)
def test_settings_of_the_app_are_in_it(
    ledger: Ledger, redis_url: str, conf: dict[str, Any]
) -> None:
    app, spec = app_on(redis_url), job(ledger, task="shop.plain", args=[1, "a"])
    app.conf.update(conf)
    with_messages(ledger, app)
    ledger.admit(ticks(spec, 0))
    assert ledger.outbox() == []
    [run] = ledger.history(spec.name)
    Publisher(app, ledger).publish([run.id])
    prefix = conf.get("broker_transport_options", {}).get("global_keyprefix", "")
    lists = [key for key in ledger.client.keys(f"{prefix}celery*") if "_kombu" not in key]
    pushed, from_celery = sent(ledger.client, *lists)
    assert pushed == from_celery
    assert pushed["content-type"] == "application/json"


def test_a_later_message_of_a_run_says_how_often_it_was_retried(
    ledger: Ledger, redis_url: str
) -> None:
    app = app_on(redis_url)
    spec = job(ledger, task="shop.plain", max_retries=3, max_crashes=3)
    with_messages(ledger, app)
    ledger.admit(ticks(spec, 0))
    [run] = (run.id for run in ledger.history(spec.name))
    begin(ledger, run, "a")
    ledger.retry(run, "a", timedelta())
    wait_until(lambda: ledger.rescue() and ledger.run(run).state is RunState.QUEUED)
    begin(ledger, run, "b")
    ledger.finish(run, "b", RunState.LOST)
    begin(ledger, run, "c")
    ledger.undo_begin(run, "c")
    messages = sent(ledger.client, "celery")
    retries = [message["headers"]["retries"] for message in messages]
    assert retries == [message["headers"][HEADER][RETRIES] for message in messages] == [0, 1, 1, 1]
    Publisher(app, ledger).publish([run])
    *_, pushed, from_celery = sent(ledger.client, "celery")
    assert pushed == from_celery
    tags = {
        json.loads(m)["properties"]["delivery_tag"] for m in ledger.client.lrange("celery", 0, -1)
    }
    assert len(tags) == 5


def test_the_message_of_a_step_is_the_one_that_celery_would_send(
    ledger: Ledger, redis_url: str
) -> None:
    app = app_on(redis_url)
    steps = [
        {"task": "shop.plain", "name": "one", "priority": 2, "args": ["x"], "time_limit": "9s"},
        {"task": "shop.routed", "name": "two", "priority": 1, "max_retries": 2},
    ]
    spec = job(ledger, task=None, steps=steps)
    with_messages(ledger, app)
    [admission] = ledger.admit(ticks(spec, 0))
    step = f"{admission.run_id}~one"
    begin(ledger, step)
    assert ledger.finish(step, "token", RunState.SUCCEEDED).to_publish == ()
    Publisher(app, ledger).publish([f"{admission.run_id}~two"])
    pushed, from_celery = sent(ledger.client, "elsewhere\x06\x163")
    assert pushed == from_celery
    assert ledger.outbox() == []


def test_an_edited_step_is_not_mixed_with_the_plan_of_an_older_run(
    ledger: Ledger, redis_url: str
) -> None:
    app = app_on(redis_url)
    steps = [{"task": "shop.plain", "name": name, "args": [name]} for name in ("one", "two")]
    spec = job(ledger, task=None, steps=[{**s, "priority": 2 - n} for n, s in enumerate(steps)])
    with_messages(ledger, app)
    [admission] = ledger.admit(ticks(spec, 0))
    steps[1]["args"] = ["edited"]
    job(ledger, task=None, steps=[{**s, "priority": 2 - n} for n, s in enumerate(steps)])
    with_messages(ledger, app)
    begin(ledger, f"{admission.run_id}~one")
    ended = ledger.finish(f"{admission.run_id}~one", "token", RunState.SUCCEEDED)
    assert ended.to_publish == (f"{admission.run_id}~two",)
    assert Publisher(app, ledger).publish(ended.to_publish) == 1
    [*_, message] = sent(ledger.client, "celery")
    assert loads(b64decode(message["body"]))[0] == ["two"]


def changes_of(ledger: Ledger) -> int:
    """How often the server's data was changed."""
    return int(ledger.client.info("persistence")["rdb_changes_since_last_save"])


def test_messages_that_are_kept_already_are_not_written_again(
    ledger: Ledger, redis_url: str
) -> None:
    app, spec = app_on(redis_url), job(ledger, task="shop.plain", args=["a"])
    changes = []
    for args in (["a"], ["a"], ["b"]):
        if [*spec.args] != args:
            spec = job(ledger, task="shop.plain", args=args)
        before = changes_of(ledger)
        with_messages(ledger, app)
        changes.append(changes_of(ledger) - before)
    first, second, edited = changes
    assert first > 0 and second == 0 and edited > 0
    ledger.admit(ticks(spec, 0))
    [message] = sent(ledger.client, "celery")
    assert loads(b64decode(message["body"]))[0] == ["b"]


def test_what_is_kept_of_a_job_is_what_was_made_last(ledger: Ledger) -> None:
    spec = job(ledger)
    version = ledger.loaded().origins[spec.name].version
    key, of_job = ledger.keys.message(spec.name), ledger.keys.job(spec.name)
    for made in ({"run": "a", "step": "b"}, {"run": "a"}, {"apart": "a reason"}, {"run": "a"}):
        ledger.keep_messages({spec.name: (version, made), "never loaded": (0, made)})
        kept = ledger.client.hgetall(key)
        reason = ledger.client.hget(of_job, "apart")
        assert kept | ({"apart": reason} if reason else {}) == made
        before = changes_of(ledger)
        ledger.keep_messages({spec.name: (version, made)})
        assert changes_of(ledger) == before
    assert not ledger.client.exists(ledger.keys.message("never loaded"))


def test_a_run_that_waits_has_the_arguments_of_an_edit(ledger: Ledger, redis_url: str) -> None:
    app, keys = app_on(redis_url), {"task": "shop.plain", "overlap": "queue_all"}
    for args in (["as it was"], ["edited"]):
        spec = job(ledger, **keys, args=args)
        with_messages(ledger, app)
        if args == ["as it was"]:
            ledger.admit(ticks(spec, 0, 1))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    said = [loads(b64decode(message["body"]))[0] for message in sent(ledger.client, "celery")]
    assert said == [["as it was"], ["edited"]]
    begin(ledger, run_id(spec, 1))


@pytest.mark.parametrize("changed", [{"key": "another"}, {"history": 7}], ids=str)
def test_a_run_of_other_rules_or_another_lock_is_left_to_celery(
    ledger: Ledger, redis_url: str, changed: dict[str, Any]
) -> None:
    spec = job(ledger, task="shop.plain")
    with_messages(ledger, app_on(redis_url))
    ledger.admit(ticks(spec.model_copy(update=changed), 0))
    assert len(ledger.outbox()) == 1


def test_what_waits_in_the_outbox_is_sent_by_the_ledger_once_it_can(
    ledger: Ledger, redis_url: str
) -> None:
    app, spec = app_on(redis_url), job(ledger, task="shop.plain")
    [tick] = ticks(spec, 0)
    ledger.admit([tick])
    assert ledger.outbox() == [tick.run_id]
    with_messages(ledger, app)
    assert ledger.send([tick.run_id, "nightly@unknown"]) == ["nightly@unknown"]
    assert (ledger.run(tick.run_id).sends, ledger.outbox()) == (1, [])
    assert ledger.client.zscore(ledger.keys.sent, tick.run_id)
    assert ledger.client.hmget(ledger.keys.run(tick.run_id), "sent", "queue")[1] == "celery"
    Publisher(app, ledger).publish([tick.run_id])
    pushed, from_celery = sent(ledger.client, "celery")
    assert pushed == from_celery
    assert begin(ledger, tick.run_id)
    assert ledger.send([tick.run_id]) == [tick.run_id], "of a run that is queued no more, none is"


OF_ITS_OWN = [{"args": "[2]"}, {"kwargs": '{"a": 2}'}, {"options": '{"shadow": "b"}'}]


@pytest.mark.parametrize("own", [*OF_ITS_OWN, {"retry_options": '{"queue": "other"}'}], ids=str)
def test_a_run_with_anything_of_its_own_is_not_sent_its_jobs_message(
    ledger: Ledger, redis_url: str, own: dict[str, str]
) -> None:
    spec = job(ledger, task="shop.plain")
    [tick] = ticks(spec, 0)
    ledger.admit([tick])
    with_messages(ledger, app_on(redis_url))
    tear(ledger, tick.run_id, **own)
    assert ledger.send([tick.run_id]) == [tick.run_id]
    assert ledger.client.llen("celery") == 0


def test_what_was_made_before_an_edit_is_forgotten(ledger: Ledger, redis_url: str) -> None:
    spec = job(ledger, task="shop.plain")
    with_messages(ledger, app_on(redis_url))
    made = ledger.client.hgetall(ledger.keys.message(spec.name))
    version = ledger.loaded().origins[spec.name].version
    lose(ledger, ledger.keys.message(spec.name))
    ledger.keep_messages({spec.name: (version - 1, made)})
    assert not ledger.client.exists(ledger.keys.message(spec.name))
    ledger.keep_messages({spec.name: (version, made)})
    assert ledger.client.hgetall(ledger.keys.message(spec.name)) == made


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
    spec = job(ledger, task="shop.plain", args=[{"__type__": mark, "__value__": value}])
    with_messages(ledger, app)
    [tick] = ticks(spec, 0)
    ledger.admit([tick])
    Publisher(app, ledger).publish([tick.run_id])
    bodies = [loads(b64decode(message["body"])) for message in sent(ledger.client, "celery")]
    assert len(bodies) == 2
    for args, kwargs, _ in bodies:
        content = content_of(tick.run_id, "shop.plain", args, kwargs)
        assert isinstance(ledger.begin(tick.run_id, "token", "worker", content=content), Grant)


def routed(*_: Any, **__: Any) -> dict[str, str]:
    return {"queue": "any"}


BATCH = [{"task": "shop.one_argument", "name": "each", "priority": 1, "foreach": "items"}]

#: Keys of the job, settings of the app, and a part of the reason.
APART: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"task": "shop.expires"}, {}, "more than its id"),
    ({"task": "shop.own"}, {}, "an apply_async"),
    ({"task": None, "steps": BATCH, "params": {"items": []}}, {}, "each item of a batch"),
    ({"task": "shop.alias"}, {}, "another name of shop.plain"),
    ({"task": "shop.one_argument"}, {}, "cannot be made"),
    ({"task": "shop.plain"}, {"task_send_sent_event": True}, "task_send_sent_event"),
    ({"task": "shop.plain"}, {"task_routes": routed}, "router"),
    ({"task": "shop.plain"}, {"task_protocol": 1}, "cannot be made"),
]


@pytest.mark.parametrize(("keys", "conf", "reason"), APART, ids=map(str, range(len(APART))))
def test_what_may_differ_or_be_refused_is_left_to_celery(
    ledger: Ledger, redis_url: str, keys: dict[str, Any], conf: dict[str, Any], reason: str
) -> None:
    app, spec = app_on(redis_url), job(ledger, **keys)
    app.tasks["shop.alias"] = app.tasks["shop.plain"]
    app.conf.update(conf)
    with_messages(ledger, app)
    assert reason in str(why_apart(ledger, spec))
    ledger.admit(ticks(spec, 0))
    run = f"{run_id(spec, 0)}~each" if spec.steps else run_id(spec, 0)
    assert ledger.outbox() == [run]
    assert ledger.client.llen("celery") == 0


def test_an_alias_of_a_task_may_begin(ledger: Ledger, redis_url: str) -> None:
    """Celery writes the name of the task, which the ledger has to be told."""
    app, spec = app_on(redis_url), job(ledger, task="shop.alias")
    app.tasks["shop.alias"] = app.tasks["shop.plain"]
    ledger.admit(ticks(spec, 0))
    [run] = ledger.outbox()
    assert Publisher(app, ledger).publish([run]) == 1
    content = content_of(run, "shop.plain", [], {})
    assert isinstance(ledger.begin(run, "token", "worker", content=content), Grant)


def test_jobs_that_differ_in_their_priority_alone_go_to_different_lists(
    ledger: Ledger, redis_url: str
) -> None:
    priorities = ("a", 0), ("b", 5), ("c", None), ("d", 9)
    specs = [job(ledger, name, priority=priority) for name, priority in priorities]
    with_messages(ledger, app_on(redis_url))
    ledger.admit([tick for spec in specs for tick in ticks(spec, 0)])
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
    publisher.publish([f"{admission.run_id}~plain", by_hand.id])
    [step] = sent(ledger.client, "celery\x06\x166")
    assert (step["headers"]["id"], step["properties"]["priority"]) == (
        f"{admission.run_id}~plain",
        6,
    )
    [other] = sent(ledger.client, "celery\x06\x163")
    assert other["headers"]["id"] == by_hand.id


def test_a_handler_of_messages_sees_each(ledger: Ledger, redis_url: str) -> None:
    app, spec = app_on(redis_url), job(ledger)

    def listen(**_: Any) -> None: ...

    signals.before_task_publish.connect(listen)
    try:
        with_messages(ledger, app)
    finally:
        signals.before_task_publish.disconnect(listen)
    assert "before_task_publish" in str(why_apart(ledger, spec))
    with_messages(ledger, app)
    assert why_apart(ledger, spec) is None


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


def admitted(ledger: Ledger, *specs: JobSpec) -> list[Tick]:
    """The first tick of each job."""
    found = [tick for spec in specs for tick in ticks(spec, 0)]
    ledger.admit(found)
    return found


def test_what_another_redis_refuses_is_left_in_the_outbox(
    ledger: Ledger, redis_url: str, elsewhere: redis.Redis
) -> None:
    publisher = Publisher(app_elsewhere(elsewhere, redis_url), ledger)
    specs = [job(ledger, name, queue=name, overlap="allow") for name in ("broken", "a", "b")]
    admitted(ledger, *specs)
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
    found = admitted(ledger, *(job(ledger, name) for name in "abcde"))
    until = time.monotonic() + scaled(1)
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


def test_a_broker_elsewhere_gets_each_message_from_celery(
    ledger: Ledger, redis_url: str, elsewhere: redis.Redis
) -> None:
    app, spec = app_elsewhere(elsewhere, redis_url), job(ledger, task="shop.plain")
    with_messages(ledger, app)
    assert why_apart(ledger, spec) == ELSEWHERE
    [tick] = admitted(ledger, spec)
    assert Publisher(app, ledger).publish(ledger.outbox()) == 1
    assert [m["headers"]["id"] for m in sent(elsewhere, "celery")] == [tick.run_id]


# A plain app is the measure: the same task, without the supervisor.

EVERY_TYPE = [
    "it's",
    'ä"<',
    "é\n\\",
    "\U0001f600",
    "",
    "%s",
    True,
    None,
    1.5,
    -0.0,
    10**30,
    {"a": [{}]},
]

#: What a job says, and what the plain task is called with.
AS_PLAIN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"args": EVERY_TYPE}, {"args": tuple(EVERY_TYPE)}),
    ({"kwargs": {"of": EVERY_TYPE}}, {"kwargs": {"of": EVERY_TYPE}}),
    ({"queue": "own"}, {"queue": "own"}),
    ({"priority": 7}, {"priority": 7}),
    ({"time_limit": "9s", "soft_time_limit": "3s"}, {"time_limit": 9, "soft_time_limit": 3}),
    ({"task": "shop.routed"}, {}),
    ({"task": "shop.compressed"}, {}),
    ({"max_retries": 3}, {}),
]

CALLS: list[dict[str, Any]] = [
    *(options for keys, options in AS_PLAIN if "task" not in keys),
    {"headers": {"tenant": "ä", "nested": {"a": 1}}},
    {"shadow": "another"},
    {"ignore_result": True},
    {"compression": "gzip"},
    {"serializer": "json"},
    {"delivery_mode": 1},
    {"stamped_headers": ["tenant"], "tenant": "ä"},
    {"link": signature("shop.routed"), "link_error": signature("shop.plain")},
    {"reply_to": "another"},
    {"argsrepr": "(...)", "kwargsrepr": "{...}"},
]


def alike(message: dict[str, Any], *given: str) -> dict[str, Any]:
    """A message without what a supervised one has more, or no two have the same."""
    headers, properties = message["headers"], message["properties"]
    headers.pop(HEADER, None)
    if "reply_to" not in given:
        del properties["reply_to"]
    id = headers["id"]
    ids = (headers, "id"), (headers, "root_id"), (properties, "correlation_id")
    for fields, name in ids:
        assert fields[name] == id
        del fields[name]
    return message


def queues(ledger: Ledger) -> list[str]:
    return [key for key in ledger.client.keys("*") if ledger.client.type(key) == "list"]


@pytest.mark.parametrize(("keys", "options"), AS_PLAIN, ids=str)
def test_the_message_of_a_job_is_a_plain_tasks(
    ledger: Ledger, redis_url: str, keys: dict[str, Any], options: dict[str, Any]
) -> None:
    spec = job(ledger, **{"task": "shop.plain", **keys})
    with_messages(ledger, app_on(redis_url))
    ledger.admit(ticks(spec, 0))
    assert ledger.outbox() == []
    plain = with_tasks(Celery("shop", broker=redis_url))
    plain.tasks[spec.task].apply_async(**options)
    [queue] = queues(ledger)
    ours, theirs = map(alike, sent(ledger.client, queue))
    assert ours["headers"].pop("periodic_task_name") == spec.name
    assert ours == theirs


def test_the_ledger_sends_already_the_first_call_of_a_process(
    ledger: Ledger, redis_url: str
) -> None:
    def called() -> None: ...

    guard = {"overlap": "queue_all"}
    task = app_on(redis_url).task(called, shared=False, name="shop.called", guard=guard)
    first, second = task.delay(), task.delay()
    begin(ledger, first.id)
    ledger.report_dead(first.id, "token", "worker process 7 died")
    assert ledger.outbox() == []
    ids = [message["headers"]["id"] for message in sent(ledger.client, "celery")]
    assert ids == [first.id, first.id]
    assert ledger.client.hget(ledger.keys.run(first.id), "queue") == "celery"
    assert ledger.run(second.id).state is RunState.WAITING


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_the_message_of_a_guarded_call_is_a_plain_tasks(
    ledger: Ledger, redis_url: str, options: dict[str, Any]
) -> None:
    def called(*args: Any, **kwargs: Any) -> None: ...

    seen = []
    for app in (app_on(redis_url), with_tasks(Celery("shop", broker=redis_url))):
        task = app.task(called, shared=False, name="shop.called", guard={"overlap": "allow"})
        task.apply_async(**options)
        assert ledger.outbox() == []
        [queue] = queues(ledger)
        [message] = sent(ledger.client, queue)
        take_all(ledger.client, queue)
        seen.append((queue, alike(message, *options)))
    ours, theirs = seen
    assert ours == theirs
