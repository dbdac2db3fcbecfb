"""Triggers that wait for the commit of Django's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import django
import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.db import connections, transaction

from supervisor.features.on_commit.django import trigger_on_commit
from supervisor.ledger.ledger import Ledger
from tests.features.on_commit.shop import NOWHERE, Tasks, nightly, numbers, runs, sent, shop_app
from tests.logged import capture_logs

TABLE = "CREATE TABLE orders (number INTEGER PRIMARY KEY)"


@pytest.fixture(scope="module", autouse=True)
def configured(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Django takes its settings once a process; it opens the files when they are used."""
    directory = tmp_path_factory.mktemp("django")
    names = {"default": "orders.db", "archive": "archive.db"}
    engine = "django.db.backends.sqlite3"
    django_settings.configure(
        DATABASES={
            alias: {"ENGINE": engine, "NAME": directory / name} for alias, name in names.items()
        },
        LOGGING_CONFIG=None,
    )
    django.setup()


@pytest.fixture(autouse=True)
def database(configured: None) -> Iterator[Path]:
    """The file of the default database; both have an empty table."""
    paths = [Path(connections[alias].settings_dict["NAME"]) for alias in ("default", "archive")]
    for path in paths:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(TABLE)
    yield paths[0]
    connections.close_all()
    for path in paths:
        path.unlink()


@pytest.fixture
def app(redis_url: str, ledger: Ledger) -> Celery:
    """The current app, as `trigger_on_commit` finds it; the ledger has the job `nightly`."""
    nightly(ledger)
    made = shop_app(redis_url)
    made.set_current()
    return made


def order(number: int, using: str = "default") -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])


def test_a_run_is_triggered_after_the_commit_and_not_before(
    app: Celery, ledger: Ledger, database: Path
) -> None:
    with transaction.atomic():
        order(1)
        run = trigger_on_commit("nightly")
        assert runs(ledger) == []
    assert numbers(database) == [1]
    assert runs(ledger) == [run]


def test_a_savepoint_that_is_rolled_back_takes_its_triggers_along(
    app: Celery, ledger: Ledger
) -> None:
    with transaction.atomic():
        outer = trigger_on_commit("nightly")
        with transaction.atomic():
            inner = trigger_on_commit("nightly")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            trigger_on_commit("nightly")
            raise ZeroDivisionError
        last = trigger_on_commit("nightly")
        assert runs(ledger) == []
    assert runs(ledger) == [outer, inner, last]


def test_outside_of_a_transaction_it_is_triggered_at_once(app: Celery, ledger: Ledger) -> None:
    run = trigger_on_commit("nightly")
    assert runs(ledger) == [run]


def test_the_commit_of_the_database_that_is_named_counts(app: Celery, ledger: Ledger) -> None:
    with transaction.atomic(using="archive"):
        order(1, using="archive")
        with transaction.atomic():
            waits = trigger_on_commit("nightly", using="archive")
            own = trigger_on_commit("nightly")
        assert runs(ledger) == [own]
    assert runs(ledger) == [own, waits]


def test_tasks_are_called_under_the_ids_that_were_returned(app: Celery, ledger: Ledger) -> None:
    tasks = Tasks(app)
    with transaction.atomic():
        mail = trigger_on_commit(tasks.mail, (1,), {"to": "all"})
        feed = trigger_on_commit(tasks.import_feed, ("a",), shadow="feed")
    assert sent(ledger) == [(mail, [1], {"to": "all"}), (feed, ["a"], {})]
    assert ledger.run(feed).options == {"shadow": "feed"}


def test_a_commit_succeeds_without_redis_and_the_next_trigger_has_its_turn(
    app: Celery, ledger: Ledger, database: Path
) -> None:
    with capture_logs() as lines, transaction.atomic():
        order(1)
        lost = trigger_on_commit("nightly", app=shop_app(NOWHERE))
        run = trigger_on_commit("nightly", app=app)
    assert numbers(database) == [1]
    assert [line["run"] for line in lines if line["event"] == "trigger failed"] == [lost]
    assert runs(ledger) == [run]
