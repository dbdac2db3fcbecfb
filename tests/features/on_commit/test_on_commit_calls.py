"""What is checked and captured when a trigger is asked for, and what is sent for it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy.orm import Session

from supervisor.errors import InvalidGuard, InvalidKey, NotConfigured
from supervisor.features.on_commit.sqlalchemy import trigger_on_commit
from supervisor.job.policies import OverlapPolicy
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from tests.features.on_commit.shop import (
    NOWHERE,
    Order,
    Tasks,
    messages,
    nightly,
    runs,
    sent,
    shop_app,
)
from tests.jobs import job


@pytest.fixture
def tasks(app: Celery) -> Tasks:
    return Tasks(app)


def test_an_unguarded_task_is_sent_under_the_id_that_was_returned(
    session: Session, tasks: Tasks, ledger: Ledger
) -> None:
    ids = [
        trigger_on_commit(session, tasks.mail, (1,), {"to": "all"}, headers={"trace": "x"}),
        trigger_on_commit(session, tasks.mail, [2], task_id="mine"),
    ]
    session.commit()
    assert sent(ledger) == [(ids[0], [1], {"to": "all"}), ("mine", [2], {})]
    assert ids[1] == "mine"
    assert messages(ledger)[0]["headers"]["trace"] == "x"
    assert ledger.job_names() == []


def test_a_guarded_task_is_a_run_under_the_id_that_was_returned(
    session: Session, tasks: Tasks, ledger: Ledger
) -> None:
    first, second = (trigger_on_commit(session, tasks.import_feed, ("a",)) for _ in "ab")
    other = trigger_on_commit(
        session, tasks.import_feed, ("a",), headers={"guard": {"key": "apart"}}, queue="slow"
    )
    session.commit()
    states = {run: ledger.run(run).state.value for run in (first, second, other)}
    assert states == {first: "queued", second: "waiting", other: "queued"}
    assert ledger.run(first).args == ["a"]
    assert ledger.client.llen("slow") == 1
    assert first.startswith("shop.import_feed@manual-")


def test_to_ask_again_under_the_same_id_is_safe(
    session: Session, tasks: Tasks, ledger: Ledger
) -> None:
    run = trigger_on_commit(session, tasks.import_feed, ("a",))
    session.commit()
    again = tasks.import_feed.apply_async(("a",), task_id=run)
    trigger_on_commit(session, tasks.import_feed, ("a",), task_id=run)
    session.commit()
    assert again.admission.placement is Placement.DUPLICATE
    assert [message[0] for message in sent(ledger)] == [run]


def test_a_job_takes_what_the_verb_trigger_takes(
    session: Session, app: Celery, ledger: Ledger
) -> None:
    job(ledger, overlap="skip", args=(1,))
    first = trigger_on_commit(session, "nightly", app=app)
    skipped = trigger_on_commit(session, "nightly", app=app)
    waits = trigger_on_commit(
        session, "nightly", app=app, overlap=OverlapPolicy.QUEUE_ALL, max_wait="90s"
    )
    apart = trigger_on_commit(session, "nightly", (2,), {"x": 3}, app=app, key="apart")
    session.commit()
    found = {run: ledger.run(run) for run in (first, skipped, waits, apart)}
    assert [run.state.value for run in found.values()] == ["queued", "skipped", "waiting", "queued"]
    assert found[first].args is None
    assert (found[apart].args, found[apart].kwargs) == ([2], {"x": 3})
    assert found[waits].rules.max_wait_ms == timedelta(seconds=90) / timedelta(milliseconds=1)
    assert [message[1] for message in sent(ledger)] == [[1], [2]]


def test_the_app_of_a_job_is_the_current_one_by_default(
    session: Session, redis_url: str, ledger: Ledger
) -> None:
    nightly(ledger)
    shop_app(redis_url).set_current()
    run = trigger_on_commit(session, "nightly")
    session.commit()
    assert runs(ledger) == [run]


def test_what_is_done_to_the_arguments_later_changes_nothing(
    session: Session, app: Celery, tasks: Tasks, ledger: Ledger
) -> None:
    nightly(ledger)
    args: list[Any] = [1, {"deep": [1]}]
    trigger_on_commit(session, "nightly", args, app=app)
    trigger_on_commit(session, tasks.mail, (1,), {"rest": args})
    args[1]["deep"].append(2)
    args.append(3)
    session.commit()
    assert [message[1:] for message in sent(ledger)] == [
        ([1, {"deep": [1]}], {}),
        ([1], {"rest": [1, {"deep": [1]}]}),
    ]


def test_times_are_sent_as_celery_sends_them(
    session: Session, app: Celery, tasks: Tasks, ledger: Ledger
) -> None:
    nightly(ledger)
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    tasks.mail.apply_async((moment,))
    trigger_on_commit(session, tasks.mail, (moment,))
    trigger_on_commit(session, "nightly", (moment,), app=app)
    session.commit()
    plain, task, run = [message[1] for message in sent(ledger)]
    assert plain == task == run
    assert plain[0]["__type__"] == "datetime"


@pytest.mark.parametrize("where", ["job", "guarded", "unguarded"])
def test_a_row_as_an_argument_is_refused_at_once(
    session: Session, app: Celery, tasks: Tasks, where: str
) -> None:
    order = Order(number=1)
    session.add(order)
    what = {"job": "nightly", "guarded": tasks.import_feed, "unguarded": tasks.mail}[where]
    with pytest.raises(match=r"Order is not JSON .* its primary key"):
        trigger_on_commit(session, what, (order,), app=app if where == "job" else None)
    session.commit()  # the transaction is none the worse


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overlp": "skip"}, InvalidGuard, "did you mean 'overlap'"),
        ({"queue": "slow"}, InvalidGuard, "unknown key 'queue'"),
        ({"max_wait": "soon"}, InvalidGuard, "'max_wait'"),
        ({"key": " "}, InvalidKey, "empty"),
        ({"args": "abc"}, TypeError, "a list or a tuple"),
        ({"kwargs": [1]}, TypeError, "a mapping"),
    ],
)
def test_a_job_that_is_asked_for_wrongly_is_refused_at_once(
    session: Session, app: Celery, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        trigger_on_commit(session, "nightly", app=app, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"args": ()}, TypeError, "missing 1 required positional argument: 'feed'"),
        ({"args": ("a",), "headers": {"guard": {"overlp": 1}}}, InvalidGuard, "overlap"),
        ({"args": ("a",), "headers": {"guard": {"key": "queue/x"}}}, InvalidKey, "serial"),
        ({"args": ("a",), "app": Celery("other", set_as_current=False)}, TypeError, "has its own"),
    ],
)
def test_a_task_that_is_called_wrongly_is_refused_at_once(
    session: Session, tasks: Tasks, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        trigger_on_commit(session, tasks.import_feed, **options)


def test_an_unguarded_task_that_lacks_an_argument_is_refused_at_once(
    session: Session, tasks: Tasks
) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        trigger_on_commit(session, tasks.mail)


def test_what_is_neither_a_job_nor_a_task_is_refused(session: Session, tasks: Tasks) -> None:
    with pytest.raises(TypeError, match="neither the name of a job nor a task"):
        trigger_on_commit(session, tasks.mail.s(1))  # type: ignore[arg-type]


def test_an_app_that_is_not_supervised_is_refused(session: Session) -> None:
    plain = Celery("plain", set_as_current=False)
    with pytest.raises(NotConfigured, match=r"call supervise\(app\)"):
        trigger_on_commit(session, "nightly", app=plain)
    with pytest.raises(NotConfigured, match=r"call supervise\(app\)"):
        trigger_on_commit(session, Tasks(plain).mail)


def test_a_thread_without_the_app_is_told_to_pass_it(session: Session, app: Celery) -> None:
    seen: list[str] = []

    def ask() -> None:
        try:
            trigger_on_commit(session, "nightly")
        except NotConfigured as error:
            seen.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    [words] = seen
    assert "pass `app`" in words


def test_nothing_is_asked_of_redis_inside_the_transaction(session: Session) -> None:
    app = shop_app(NOWHERE)
    tasks = Tasks(app)
    session.add(Order(number=1))
    trigger_on_commit(session, "no-such-job", app=app)
    trigger_on_commit(session, tasks.import_feed, ("a",))
    trigger_on_commit(session, tasks.mail, (1,))
    session.rollback()
