from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.catalog.entries import Entries
from supervisor.ledger.ledger import Ledger
from tests.ledger.commands import Supervisor, supervisor_at

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session


@pytest.fixture
def supervisor(redis_url: str) -> Supervisor:
    """The command line on the test's ledger."""
    return supervisor_at(redis_url)


@pytest.fixture
def app(redis_url: str, ledger: Ledger) -> Iterator[Celery]:
    """A supervised app on the test's ledger, without tasks."""
    with supervise(Celery("proj", broker=redis_url, set_as_current=False)) as made:
        yield made


@pytest.fixture
def entries(ledger: Ledger, app: Celery) -> Entries:
    return Entries(app, ledger)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def engine(database: Path) -> Iterator[Engine]:
    # Not in every environment of the matrix there is SQLAlchemy.
    from tests.ledger.shop import orders_engine

    made = orders_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    from sqlalchemy.orm import Session

    with Session(engine) as opened:
        yield opened
