from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from tests.web.visits import TOKEN, visiting

Serve = Callable[[Access], httpx.Client]


@pytest.fixture
def serve(ledger: Ledger) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda access: stack.enter_context(visiting(ledger, access))


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
