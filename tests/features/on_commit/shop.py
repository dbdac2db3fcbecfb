"""A shop that triggers runs from its transactions: its app, its messages, its SQLite database."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from typing import Any

from celery import Celery, Task
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from supervisor.app import supervise
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from tests.jobs import job

#: Nobody listens there: the port is reserved.
NOWHERE = "redis://127.0.0.1:1/0"


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


class Tasks:
    """The tasks of one app: one with a guard, one without."""

    def __init__(self, app: Celery) -> None:
        self.import_feed: Task[Any, Any] = app.task(
            name="shop.import_feed",
            shared=False,
            guard={"overlap": "queue_all", "key": "feed:{feed}"},
        )(import_feed)
        self.mail: Task[Any, Any] = app.task(name="shop.mail", shared=False)(mail)


def import_feed(feed: str, full: bool = False) -> None: ...


def mail(number: int, **_: Any) -> None: ...


def shop_app(url: str) -> Celery:
    return supervise(Celery("shop", broker=url))


def nightly(ledger: Ledger) -> JobSpec:
    """A job of which any number of runs are admitted."""
    return job(ledger, overlap="allow", args=(1,))


def runs(ledger: Ledger) -> list[str]:
    """Ids of the runs of `nightly`, in the order in which they were sent."""
    in_order = [message["headers"]["id"] for message in messages(ledger)]
    assert sorted(in_order) == sorted(run.id for run in ledger.history("nightly"))
    return in_order


def messages(ledger: Ledger) -> list[dict[str, Any]]:
    """What lies in the queue, oldest first."""
    texts = ledger.client.lrange("celery", 0, -1)
    return [json.loads(text) for text in reversed(texts)]


def sent(ledger: Ledger) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Id, args and kwargs of each message in the queue, oldest first."""
    seen = []
    for message in messages(ledger):
        args, kwargs, _ = json.loads(b64decode(message["body"]))
        seen.append((message["headers"]["id"], args, kwargs))
    return seen


def orders_engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}")
    begin_as_sqlalchemy_does(engine)
    Base.metadata.create_all(engine)
    return engine


def begin_as_sqlalchemy_does(engine: Engine) -> None:
    """sqlite3 begins a transaction only before it writes: too late for a SAVEPOINT."""

    @event.listens_for(engine, "connect")
    def leave_it_to_us(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def numbers(path: Path) -> list[int]:
    """The orders that another connection sees."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT number FROM orders ORDER BY number").fetchall()
    return [number for (number,) in rows]
