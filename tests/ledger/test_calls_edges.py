"""Calls of guarded tasks that are unlike others, and what must not come of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task
from celery.contrib.abortable import AbortableTask
from celery.exceptions import TaskRevokedError

from supervisor.app import supervise
from supervisor.errors import InvalidGuard, InvalidRequest, UnsafeContent
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control
from tests.waiting import patience


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
def test_a_time_beyond_all_is_readable(app: Celery, ledger: Ledger, option: dict[str, Any]) -> None:
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


def test_a_skipped_call_nobody_waits_for_needs_no_backend(redis_url: str, ledger: Ledger) -> None:
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
            skipped.get(timeout=patience(10))


@pytest.mark.parametrize(
    ("option", "error"),
    [({"serializer": "pickle"}, UnsafeContent), ({"compression": "nosuch"}, InvalidGuard)],
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
        control.pause(ledger, "calls.work", "", None, by=Actor("alice", "cli"))
    assert not ledger.job("calls.work").paused
