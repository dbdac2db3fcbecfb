"""Which role each route takes."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.ledger.ledger import Ledger
from supervisor.web.roles import NEEDS, guarded, keys_of
from supervisor.web.server import create


async def anything(_: Request) -> Response:
    return Response()


def test_a_route_whose_role_is_not_declared_is_not_served() -> None:
    with pytest.raises(KeyError, match="/new"):
        guarded([Route("/new", anything)])


def test_every_declared_role_is_of_a_route(ledger: Ledger) -> None:
    routes = [route for route in create(ledger).routes if isinstance(route, Route)]
    assert {key for route in routes for key in keys_of(route).values()} == NEEDS.keys()
