from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from celery import Celery

from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from tests.tools.web.visits import TOKEN, log_in, visiting

Serve = Callable[[Access], httpx.Client]


@pytest.fixture
def serve(ledger: Ledger) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda access: stack.enter_context(visiting(ledger, access))


@pytest.fixture
def maker(ledger: Ledger, app: Celery) -> Iterator[httpx.Client]:
    """A program that shows the token to a server that makes jobs of the app."""
    with visiting(ledger, Access(TOKEN), app) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client


@pytest.fixture
def editor(ledger: Ledger, app: Celery) -> Iterator[httpx.Client]:
    """A person who has logged in to such a server."""
    with visiting(ledger, Access(TOKEN), app) as client:
        log_in(client)
        yield client


@pytest.fixture
def reader(serve: Serve) -> httpx.Client:
    """A visitor of a server on loopback that has no token."""
    return serve(Access())


@pytest.fixture
def bearer(serve: Serve) -> httpx.Client:
    """A program that shows the token to a server on loopback."""
    client = serve(Access(TOKEN))
    client.headers["authorization"] = f"Bearer {TOKEN}"
    return client
