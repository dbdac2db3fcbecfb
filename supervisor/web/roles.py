"""The roles, and which of them each route takes: the one place that says so.

A route that is not in `NEEDS` is not served: `guarded` raises, and so does the server's start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from supervisor.web.http import Refused


class Role(StrEnum):
    """Each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    EDITOR = "editor"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Need:
    """role: None for a route that is for everybody."""

    role: Role | None


EVERYBODY = Need(None)
VIEWER, OPERATOR, EDITOR = Need(Role.VIEWER), Need(Role.OPERATOR), Need(Role.EDITOR)

#: "<method> <path>", as the routes spell it. HEAD is GET.
NEEDS: Mapping[str, Need] = {
    "GET /healthz": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /login": EVERYBODY,
    "POST /login": EVERYBODY,
    "POST /logout": EVERYBODY,
    "GET /metrics": VIEWER,
    "GET /events": VIEWER,
    "GET /": VIEWER,
    "GET /failures": VIEWER,
    "GET /queues": VIEWER,
    "GET /jobs/{target:path}": VIEWER,
    "GET /runs/{target:path}": VIEWER,
    "GET /actions/trigger/{target:path}": OPERATOR,
    "POST /actions/trigger/{target:path}": OPERATOR,
    "GET /actions/pause/{target:path}": OPERATOR,
    "POST /actions/pause/{target:path}": OPERATOR,
    "GET /actions/resume/{target:path}": OPERATOR,
    "POST /actions/resume/{target:path}": OPERATOR,
    "GET /actions/cancel/{target:path}": OPERATOR,
    "POST /actions/cancel/{target:path}": OPERATOR,
    "GET /actions/remove/{target:path}": EDITOR,
    "POST /actions/remove/{target:path}": EDITOR,
    "GET /actions/new": EDITOR,
    "GET /actions/edit/{target:path}": EDITOR,
    "POST /actions/check": EDITOR,
    "POST /actions/put": EDITOR,
    "GET /api/v1/openapi.json": VIEWER,
    "GET /api/v1/jobs": VIEWER,
    "GET /api/v1/jobs/{job:path}": VIEWER,
    "PUT /api/v1/jobs/{job:path}": EDITOR,
    "DELETE /api/v1/jobs/{job:path}": EDITOR,
    "POST /api/v1/jobs/{job:path}/check": EDITOR,
    "POST /api/v1/jobs/{job:path}/trigger": OPERATOR,
    "POST /api/v1/jobs/{job:path}/pause": OPERATOR,
    "POST /api/v1/jobs/{job:path}/resume": OPERATOR,
    "POST /api/v1/runs/{run:path}/cancel": OPERATOR,
    "GET /api/v1/runs": VIEWER,
    "GET /api/v1/failures": VIEWER,
    "GET /api/v1/runs/{run:path}/log": VIEWER,
    "GET /api/v1/runs/{run:path}": VIEWER,
    "GET /api/v1/queues": VIEWER,
    "GET /api/v1/beat": VIEWER,
}

Routes = TypeVar("Routes", bound=Sequence[object])


def guarded(routes: Routes) -> Routes:
    """The routes, each of which then looks at its visitor first. Raises KeyError for one that
    `NEEDS` does not have.
    """
    for route in routes:
        if isinstance(route, Route):
            needs = {method: NEEDS[key] for method, key in keys_of(route).items()}
            route.app = RoleCheck(route.app, needs)
    return routes


def keys_of(route: Route) -> dict[str, str]:
    """By method, what it is called in `NEEDS`."""
    methods = sorted(route.methods or ())
    return {m: f"{'GET' if m == 'HEAD' else m} {route.path}" for m in methods}


class RoleCheck:
    """Before a route: the role that it takes."""

    def __init__(self, app: ASGIApp, needs: Mapping[str, Need]) -> None:
        self._app = app
        self._needs = needs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A method that the route does not take is answered by the route.
        if need := self._needs.get(scope["method"]):
            check(Request(scope), need)
        await self._app(scope, receive, send)


def check(request: Request, need: Need) -> None:
    """Raises Refused."""
    visitor = request.state.visitor
    role: Role | None = visitor.role
    if need.role is None or (role is not None and role.includes(need.role)):
        return
    if not visitor.name:
        return  # a person who is not logged in is sent to the login form
    raise Refused(403, f"this takes the role {need.role}; {visitor.name} is {role or 'none'}")
