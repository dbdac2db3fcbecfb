from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.beat.entries import Entries
from supervisor.ledger.ledger import Ledger
from tests.ledger.commands import Supervisor, supervisor_at


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
    return Entries(app, ledger.client, ledger.keys)
