"""Triggers that wait for the commit of a SQLAlchemy session, SAVEPOINTs included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from supervisor.features.on_commit.sqlalchemy import trigger_on_commit
from supervisor.ledger.ledger import Ledger
from tests.features.on_commit.shop import (
    NOWHERE,
    Order,
    Tasks,
    begin_as_sqlalchemy_does,
    nightly,
    numbers,
    runs,
    shop_app,
)
from tests.logged import capture_logs

Ask = Callable[..., str]


@pytest.fixture
def ask(session: Session, app: Celery, ledger: Ledger) -> Ask:
    """Asks the session's transaction, or another's, for a run of the job `nightly`."""
    nightly(ledger)
    return lambda of=session, **keys: trigger_on_commit(of, "nightly", app=app, **keys)


def test_the_row_is_there_for_others_when_the_trigger_fires(
    session: Session, app: Celery, database: Path
) -> None:
    app.conf.task_always_eager = True
    seen: list[int] = []

    @app.task(name="shop.look")
    def look() -> None:
        seen.extend(numbers(database))

    session.add(Order(number=7))
    trigger_on_commit(session, look)
    session.commit()
    assert seen == [7]


def test_the_connection_is_given_back_before_a_trigger_fires(
    session: Session, app: Celery, engine: Engine
) -> None:
    app.conf.task_always_eager = True
    busy: list[int] = []

    @app.task(name="shop.count")
    def count() -> None:
        busy.append(engine.pool.checkedout())  # type: ignore[attr-defined]

    session.add(Order(number=7))
    trigger_on_commit(session, count)
    session.commit()
    assert busy == [0]


@pytest.mark.parametrize("end", ["rollback", "close", "reset", "invalidate", "expunge_and_close"])
def test_a_transaction_that_does_not_commit_triggers_nothing(
    session: Session, ask: Ask, ledger: Ledger, end: str
) -> None:
    session.add(Order(number=1))
    ask()
    if end == "expunge_and_close":
        session.expunge_all()
        end = "close"
    getattr(session, end)()
    session.commit()
    assert runs(ledger) == []


def test_a_commit_that_the_database_refuses_triggers_nothing(
    session: Session, ask: Ask, ledger: Ledger
) -> None:
    session.execute(
        text(
            "CREATE TABLE lines (number INTEGER"
            " REFERENCES orders (number) DEFERRABLE INITIALLY DEFERRED)"
        )
    )
    session.commit()
    session.execute(text("INSERT INTO lines VALUES (99)"))
    ask()
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()
    session.commit()
    assert runs(ledger) == []


#: What a session does, and the numbers of the triggers that fire, in the order they were asked for.
#: a: asks for a run, (: begins a savepoint, ): releases it, x: rolls it back, C: commits, R: rolls
#: the transaction back.
TRANSACTIONS = {
    "aC": [0],
    "aCC": [0],
    "aCaC": [0, 1],
    "aRaC": [1],
    "a(axaC": [0, 2],
    "(a)C": [0],
    "(a)R": [],
    "a((a)xC": [0],
    "(a(aC": [0, 1],
    "a(aRC": [],
    "a(a(a)a)aC": [0, 1, 2, 3, 4],
}


@pytest.mark.parametrize("steps", TRANSACTIONS)
def test_a_trigger_fires_with_the_outermost_commit_or_never(
    session: Session, ask: Ask, ledger: Ledger, steps: str
) -> None:
    asked, savepoints = [], []
    for step in steps:
        before = runs(ledger)
        match step:
            case "a":
                asked.append(ask())
            case "(":
                savepoints.append(session.begin_nested())
            case ")":
                savepoints.pop().commit()
            case "x":
                savepoints.pop().rollback()
            case "R":
                session.rollback()
        assert runs(ledger) == before
        if step == "C":
            session.commit()
    assert runs(ledger) == [asked[number] for number in TRANSACTIONS[steps]]


def test_sessions_do_not_fire_each_others_triggers(
    session: Session, ask: Ask, ledger: Ledger, engine: Engine
) -> None:
    ask()
    with Session(engine) as other:
        own = ask(other)
        other.commit()
    assert runs(ledger) == [own]


@pytest.mark.parametrize("hook", ["before_flush", "after_flush", "before_commit"])
def test_a_hook_of_the_session_may_ask(
    session: Session, ask: Ask, ledger: Ledger, hook: str
) -> None:
    asked: list[str] = []
    event.listen(session, hook, lambda *_: asked.append(ask()), once=True)
    session.add(Order(number=1))
    session.commit()
    assert runs(ledger) == asked != []


def test_a_savepoint_of_a_flush_hands_on_to_the_transaction_around_it(
    session: Session, ask: Ask, ledger: Ledger
) -> None:
    asked: list[str] = []

    def in_savepoint(*_: Any) -> None:
        with session.begin_nested():
            asked.append(ask())

    event.listen(session, "after_flush", in_savepoint, once=True)
    session.add(Order(number=1))
    session.commit()
    assert runs(ledger) == asked != []


def test_what_no_commit_can_follow_is_refused(session: Session, ask: Ask, engine: Engine) -> None:
    refused: list[type[Exception]] = []

    def too_late(_: Session) -> None:
        with pytest.raises(InvalidRequestError, match="has committed") as caught:
            ask()
        refused.append(caught.type)

    event.listen(session, "after_commit", too_late)
    session.commit()
    assert refused == [InvalidRequestError]
    with Session(engine, autobegin=False) as manual:
        with pytest.raises(InvalidRequestError, match="autobegin=False"):
            ask(manual)
        with manual.begin():
            ask(manual)


def test_a_trigger_may_ask_for_the_next(session: Session, app: Celery) -> None:
    app.conf.task_always_eager = True
    steps: list[int] = []

    @app.task(name="shop.step")
    def step(number: int) -> None:
        steps.append(number)
        if number < 3:
            trigger_on_commit(session, step, (number + 1,))

    trigger_on_commit(session, step, (1,))
    for expected in (1, 2, 3, 3):
        session.commit()
        assert steps[-1] == len(steps) == expected


def test_a_scoped_session_is_the_session_of_its_scope(
    engine: Engine, ask: Ask, ledger: Ledger
) -> None:
    scoped = scoped_session(sessionmaker(engine))
    run = ask(scoped)
    scoped().commit()
    ask(scoped)
    scoped.remove()
    assert runs(ledger) == [run]


def test_an_async_session_fires_at_its_commit(database: Path, ask: Ask, ledger: Ledger) -> None:
    async def order() -> list[str]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
        begin_as_sqlalchemy_does(engine.sync_engine)
        kept = []
        async with AsyncSession(engine) as session:
            session.add(Order(number=1))
            kept.append(ask(session))
            savepoint = await session.begin_nested()
            ask(session)
            await savepoint.rollback()
            await session.commit()
            ask(session)
            await session.rollback()
        scoped = async_scoped_session(async_sessionmaker(engine), lambda: None)
        kept.append(ask(scoped))
        await scoped.commit()
        await scoped.remove()
        await engine.dispose()
        return kept

    kept = asyncio.run(order())
    assert numbers(database) == [1]
    assert runs(ledger) == kept


def test_a_commit_succeeds_without_redis_and_the_log_has_all_facts(
    session: Session, database: Path
) -> None:
    app = shop_app(NOWHERE)
    tasks = Tasks(app)
    session.add(Order(number=1))
    lost = [
        trigger_on_commit(session, "nightly", [1], {"deep": True}, app=app, key="a"),
        trigger_on_commit(session, tasks.import_feed, ("f",)),
        trigger_on_commit(session, tasks.mail, kwargs={"number": 1}, retry=False),
    ]
    with capture_logs() as lines:
        session.commit()
    assert numbers(database) == [1]
    told = [line for line in lines if line["event"] == "trigger failed"]
    assert [line["run"] for line in told] == lost
    assert {line["log_level"] for line in told} == {"error"}
    assert all("Connection" in line["error"] for line in told)
    fields = {key: told[0][key] for key in ("job", "args", "kwargs", "options")}
    assert fields == {
        "job": "nightly",
        "args": (1,),
        "kwargs": {"deep": True},
        "options": {"key": "a"},
    }
    assert (told[1]["task"], told[1]["args"]) == ("shop.import_feed", ("f",))
    assert (told[2]["task"], told[2]["kwargs"]) == ("shop.mail", {"number": 1})


def test_a_trigger_that_fails_does_not_keep_the_next_from_firing(
    session: Session, ask: Ask, app: Celery, ledger: Ledger
) -> None:
    unknown = trigger_on_commit(session, "nigthly", app=app)
    known = ask()
    with capture_logs() as lines:
        session.commit()
    assert runs(ledger) == [known]
    [line] = [line for line in lines if line["event"] == "trigger failed"]
    assert (line["run"], line["job"]) == (unknown, "nigthly")
