"""The message of a guarded call is sent by the function that admits its run, where that can be."""

from __future__ import annotations

import json
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import wraps
from itertools import count
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task, current_task, group, signals
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.contrib.abortable import AbortableTask
from celery.exceptions import TaskRevokedError
from kombu import Queue

from supervisor import GuardedResult
from supervisor.app import supervise
from supervisor.errors import InvalidGuard, InvalidRequest, NoQueue
from supervisor.job.run import RunState
from supervisor.ledger.actions import Actor
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control
from supervisor.sending.publisher import publisher_of
from tests.damage import tear
from tests.queues import take_all
from tests.waiting import scaled, wait_until


def guarded(app: Celery, name: str = "calls.work", **guard: Any) -> Any:
    def work(number: int) -> None: ...

    return app.task(name=name, guard=guard or True, ignore_result=True, shared=False)(work)


def functions_called(ledger: Ledger) -> int:
    return int(ledger.client.info("commandstats")["cmdstat_fcall"]["calls"])


def called(ledger: Ledger, task: Any, times: int) -> tuple[list[Placement], int]:
    """Where the runs of so many calls went, and how many functions the calls took."""
    task.apply_async((0,), headers={"guard": {"key": "to warm up"}})
    before = functions_called(ledger)
    placements = [task.delay(1).admission.placement for _ in range(times)]
    return placements, functions_called(ledger) - before


def test_a_call_to_a_queue_that_the_app_refuses_makes_no_run(app: Celery, ledger: Ledger) -> None:
    app.conf.update(task_create_missing_queues=False, task_queues=[Queue("celery")])
    task = guarded(app)
    with pytest.raises(NoQueue, match="the app has no queue 'celary'"):
        task.apply_async((1,), queue="celary")
    assert (ledger.history(task.name), ledger.outbox()) == ([], [])
    assert task.apply_async((1,)).admission.placement is Placement.START


def test_a_call_is_one_script_that_sends_the_message(app: Celery, ledger: Ledger) -> None:
    task = guarded(app, key="{number}", overlap="queue_all")
    assert called(ledger, task, 2) == ([Placement.START, Placement.WAIT], 2)
    assert ledger.client.llen("celery") == 2
    assert [(run.state, run.sends) for run in ledger.history(task.name)] == [
        (RunState.WAITING, 0),
        (RunState.QUEUED, 1),
        (RunState.QUEUED, 1),
    ]
    assert ledger.outbox() == []
    assert ledger.spec(task.name).key == "{number}"


def test_the_end_of_a_run_sends_the_message_of_the_call_that_waited(
    app: Celery, ledger: Ledger
) -> None:
    task = guarded(app, key="{number}", overlap="queue_all")
    called(ledger, task, 2)
    waiting, running, _ = (run.id for run in ledger.history(task.name))
    ledger.begin(running, "token", "worker")
    assert ledger.finish(running, "token", RunState.SUCCEEDED).to_publish == ()
    assert ledger.client.llen("celery") == 3
    assert json.loads(ledger.client.lindex("celery", 0))["headers"]["id"] == waiting
    assert ledger.run(waiting).sends == 1


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_call_that_has_ended_keeps_no_message(app: Celery, ledger: Ledger, end: str) -> None:
    task = guarded(app, overlap="queue_all", max_wait="1h" if end == "cancelled" else "1ms")
    called(ledger, task, 2)
    waiting = next(run.id for run in ledger.history(task.name) if run.state is RunState.WAITING)
    assert ledger.run(waiting).message
    if end == "cancelled":
        ledger.cancel(waiting, "a test")
    else:
        wait_until(lambda: ledger.rescue(10) and ledger.run(waiting).state is RunState.SKIPPED)
    assert ledger.run(waiting).message is None


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    (("it's 'ä\"<' %(run)s",), {"queue": "own"}),
    (([None, {"deep": [1.5, 10**30]}],), {"priority": 7}),
    ((datetime(2026, 3, 1, tzinfo=UTC),), {"ignore_result": False}),
    (("x" * 2000,), {"headers": {"trace": "a"}}),
    ((2,), {"headers": {"guard": {"key": "another", "overlap": "allow"}}}),
    ((3,), {"compression": "gzip", "expires": 60}),
    ((4,), {"root_id": "the root's", "parent_id": 'a "parent" of 100 %'}),
    ((5,), {"root_id": "none but this"}),
    ((6,), {"root_id": None, "parent_id": None}),
]


@pytest.mark.parametrize(("args", "options"), CALLS, ids=str)
def test_the_message_of_a_call_is_the_one_that_celery_would_send(
    app: Celery, ledger: Ledger, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    task = guarded(app, key="{number}", max_retries=2)
    task.delay(0)  # its channel is known from now on
    others = {name: value and "another" for name, value in options.items() if "_id" in name}
    task.apply_async((datetime(1, 1, 1, tzinfo=UTC),), **{**options, **others, "headers": {}})
    with ThreadPoolExecutor(1) as other_thread:  # a caller may wait for results in each thread
        call = other_thread.submit(task.apply_async, args, **options).result()
        reply_to = other_thread.submit(lambda: app.thread_oid).result()
    tear(ledger, call.id, changed="1")  # so that Celery makes another
    publisher_of(app).publish([call.id])
    as_called, from_celery = sent_of(ledger, call.id)
    assert as_called["properties"].pop("reply_to") == reply_to
    del from_celery["properties"]["reply_to"]
    for message in (as_called, from_celery):
        own = message["headers"]["supervisor"]
        del own["nominal"], message["properties"]["delivery_tag"]
    assert as_called == from_celery


def test_what_a_library_adds_to_each_message_is_in_that_of_each_call(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, numbers = Celery.send_task, count()

    @wraps(send)
    def traced(self: Celery, *args: Any, **options: Any) -> Any:
        headers = {**options.pop("headers", {}), "number": next(numbers)}
        return send(self, *args, headers=headers, **options)

    task = guarded(app, overlap="allow")
    for _ in range(3):
        task.delay(1)
    take_all(ledger.client)
    monkeypatch.setattr(Celery, "send_task", traced)
    for _ in range(3):
        task.delay(1)
    messages = map(json.loads, ledger.client.lrange("celery", 0, -1))
    assert [message["headers"]["number"] for message in messages] == [2, 1, 0]


def sent_of(ledger: Ledger, run_id: str) -> list[Any]:
    """The messages of a run in all queues, first sent first."""
    queues = [f"{name}{sep(step)}" for name in ("own", "celery") for step in (0, 3, 6, 9)]
    texts = [text for queue in queues for text in ledger.client.lrange(queue, 0, -1)]
    return [m for m in map(json.loads, texts) if m["headers"]["id"] == run_id][::-1]


def test_a_handler_of_messages_is_called_once_a_call(app: Celery, ledger: Ledger) -> None:
    seen = []

    def listen(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers["id"])

    signals.before_task_publish.connect(listen)
    try:
        placements, functions = called(ledger, guarded(app), 2)
    finally:
        signals.before_task_publish.disconnect(listen)
    assert placements == [Placement.START, Placement.SKIP]
    assert functions == 2
    assert (len(seen), ledger.client.llen("celery")) == (3, 2)  # the third one was skipped


def test_what_the_apps_code_raises_is_raised_for_the_caller(app: Celery, ledger: Ledger) -> None:
    class Own(app.Task):  # type: ignore[name-defined,misc]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            if options.get("headers"):  # the message is made
                raise LookupError("no tenant")
            return super().apply_async(*args, **options)

    task = task_of(app, base=Own)
    with pytest.raises(LookupError, match="no tenant"):
        task.delay(1)
    assert ledger.history(task.name) == []


def test_calls_that_threads_make_at_the_same_time_have_a_message_each(
    app: Celery, ledger: Ledger
) -> None:
    task, both = guarded(app, overlap="allow"), Barrier(2)
    task.delay(0)  # its channel is known from now on
    take_all(ledger.client)
    before = functions_called(ledger)

    def meet(**_: Any) -> None:
        both.wait(scaled(10))

    signals.before_task_publish.connect(meet)
    try:
        with ThreadPoolExecutor(2) as threads:
            calls = dict(zip("12", threads.map(task.delay, "12"), strict=True))
    finally:
        signals.before_task_publish.disconnect(meet)
    messages = map(json.loads, ledger.client.lrange("celery", 0, -1))
    sent = {json.loads(b64decode(m["body"]))[0][0]: m["headers"]["id"] for m in messages}
    assert sent == {number: call.id for number, call in calls.items()}
    assert functions_called(ledger) - before == 2


def test_a_call_that_replaces_another_is_sent_once(app: Celery, ledger: Ledger) -> None:
    task = guarded(app, overlap="replace")
    placements, _ = called(ledger, task, 2)
    assert placements == [Placement.START, Placement.START]
    assert [run.state for run in ledger.history(task.name)][:2] == [
        RunState.QUEUED,
        RunState.REPLACED,
    ]
    assert ledger.client.llen("celery") == 3


def test_a_task_that_is_sent_by_code_of_its_own_is_sent_once(app: Celery, ledger: Ledger) -> None:
    sent = []

    class Own(app.Task):  # type: ignore[name-defined,misc]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            sent.append(options.get("headers", {}).keys())
            return super().apply_async(*args, **options)

    @app.task(base=Own, name="calls.own", guard=True, ignore_result=True, shared=False)
    def task() -> None: ...

    assert [task.delay().admission.placement.value for _ in "ab"] == ["start", "skip"]
    # Of each call, and of the message that is made for it.
    assert [bool(headers) for headers in sent] == [False, True, False, True]
    assert ledger.client.llen("celery") == 1


def test_the_parts_of_a_group_need_no_more_connections_than_there_are(
    app: Celery, ledger: Ledger
) -> None:
    app.conf.broker_pool_limit = 1
    task = guarded(app, overlap="queue_all")
    task.delay(0)
    group(task.s(number) for number in range(3)).apply_async()
    assert len(ledger.history(task.name)) == 4


class Parent:
    """A task at work in this thread."""

    def __init__(self, app: Celery) -> None:
        @app.task(name="calls.parent", bind=True, shared=False)
        def parent(self: Any) -> None: ...

        self._task = parent

    def __enter__(self) -> Any:
        said = {"id": "of-parent", "delivery_info": {"priority": 3}, "children": []}
        self._task.push_request(**said, called_directly=False)
        _task_stack.push(self._task)
        return self._task

    def __exit__(self, *_: object) -> None:
        _task_stack.pop()
        self._task.pop_request()


def test_who_listens_sees_the_task_that_calls(app: Celery, ledger: Ledger) -> None:
    seen = []

    def listen(**_: Any) -> None:
        seen.append(current_task and current_task.name)

    signals.before_task_publish.connect(listen)
    try:
        with Parent(app):
            guarded(app).delay(1)
    finally:
        signals.before_task_publish.disconnect(listen)
    assert seen == ["calls.parent"]


@pytest.mark.parametrize(
    ("own", "route", "priority"), [(None, {}, 3), (7, {}, 7), (None, {"priority": 5}, 5)]
)
def test_a_priority_is_inherited_where_nobody_names_one(
    app: Celery, ledger: Ledger, own: int | None, route: dict[str, int], priority: int
) -> None:
    app.conf.task_inherit_parent_priority = True
    task = guarded(app)
    task.priority = own
    app.conf.task_routes = {task.name: route}
    with Parent(app) as parent:
        call = task.delay(1)
        assert [child.id for child in parent.request.children] == [call.id]
        skipped = task.delay(2)
        assert len(parent.request.children) == 1
    assert isinstance(skipped, GuardedResult)
    assert (skipped.was_skipped, skipped.admission.blocked_by) == (True, call.id)
    [message] = [
        m for step in (0, 3, 6, 9) for m in ledger.client.lrange(f"celery{sep(step)}", 0, -1)
    ]
    assert json.loads(message)["properties"]["priority"] == priority


def sep(step: int) -> str:
    return f"\x06\x16{step}" if step else ""


# Calls that are unlike others, and what must not come of them


def task_of(app: Celery, **options: Any) -> Any:
    def work(number: int) -> None: ...

    said = {"name": "calls.work", "shared": False, "guard": True, **options}
    return app.task(**said)(work)


@pytest.mark.parametrize(
    "option",
    [
        {"expires": datetime.max},
        {"expires": datetime.max.replace(tzinfo=UTC)},
        {"expires": 1e15},
        {"eta": datetime.max},
        {"countdown": 1e15},
    ],
)
def test_a_time_beyond_all_times_can_be_read_again(
    app: Celery, ledger: Ledger, option: dict[str, Any]
) -> None:
    called = task_of(app).apply_async((1,), **option)
    assert [run.id for run in ledger.history("calls.work")] == [called.id]


def test_an_id_may_be_a_uuid(app: Celery, ledger: Ledger) -> None:
    given = uuid4()
    called = task_of(app).apply_async((1,), task_id=given)
    assert [run.id for run in ledger.history("calls.work")] == [called.id] == [str(given)]


@pytest.mark.parametrize("guard", [None, True])
def test_a_class_of_its_own_need_not_know_all_of_celerys_positions(
    app: Celery, ledger: Ledger, guard: bool | None
) -> None:
    class Own(Task):  # type: ignore[type-arg]
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().apply_async(args, kwargs, **options)

    task_of(app, base=Own, guard=guard, ignore_result=True).delay(1)
    assert ledger.client.llen("celery") == 1


def test_a_call_that_is_skipped_needs_no_result_backend_where_nobody_waits(
    redis_url: str, ledger: Ledger
) -> None:
    away = {"retry_policy": {"max_retries": 0}}
    with Celery("away", broker=redis_url, set_as_current=False) as app:
        app.conf.update(
            result_backend="redis://127.0.0.1:1/0", result_backend_transport_options=away
        )
        task = task_of(supervise(app), ignore_result=True)
        assert [task.delay(1).was_skipped for _ in "ab"] == [False, True]


def test_who_waits_by_rpc_hears_that_the_call_was_skipped(redis_url: str, ledger: Ledger) -> None:
    with Celery("rpc", broker=redis_url, backend="rpc://", set_as_current=False) as app:
        task = task_of(supervise(app))
        _, skipped = task.delay(1), task.delay(1)
        with pytest.raises(TaskRevokedError):
            skipped.get(timeout=scaled(10))


@pytest.mark.parametrize(
    ("option", "error"),
    [({"serializer": "pickle"}, InvalidGuard), ({"compression": "nosuch"}, InvalidGuard)],
)
def test_a_message_that_no_worker_could_read_takes_no_lock(
    app: Celery, ledger: Ledger, option: dict[str, str], error: type[Exception]
) -> None:
    task = task_of(app)
    with pytest.raises(error, match=next(iter(option.values()))):
        task.apply_async((1,), **option)
    assert ledger.history("calls.work") == []


def test_the_result_can_do_what_the_tasks_own_results_can(app: Celery, ledger: Ledger) -> None:
    result = task_of(app, base=AbortableTask).delay(1)
    assert callable(result.abort)
    assert not result.was_skipped


def test_a_guarded_task_has_nothing_to_be_paused(app: Celery, ledger: Ledger) -> None:
    task_of(app).delay(1)
    with pytest.raises(InvalidRequest, match="code calls it"):
        control.pause(ledger, "calls.work", by=Actor("alice", "cli"))
    assert not ledger.job("calls.work").paused
