"""Which role each route takes, and which verb the record of actions has for what it does.

A server with a route that is not listed here does not start.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.lists.page import ROUTES
from supervisor.web.access_file import Role

#: "<method> <path>", as the routes spell it. HEAD is GET. None: for everybody.
NEEDS: Mapping[str, Role | None] = {
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /login": None,
    "POST /login": None,
    "POST /logout": None,
    "GET /metrics": Role.VIEWER,
    "GET /": Role.VIEWER,
    "GET /failures": Role.VIEWER,
    "GET /timeline": Role.VIEWER,
    "GET /logs/{target:path}": Role.VIEWER,
    "GET /queues": Role.VIEWER,
    "GET /record": Role.VIEWER,
    "GET /jobs/{target:path}": Role.VIEWER,
    "GET /runs/{target:path}": Role.VIEWER,
    "GET /actions/backfill/{target:path}": Role.OPERATOR,
    "POST /actions/backfill/{target:path}": Role.OPERATOR,
    "GET /actions/trigger/{target:path}": Role.OPERATOR,
    "POST /actions/trigger/{target:path}": Role.OPERATOR,
    "GET /actions/pause/{target:path}": Role.OPERATOR,
    "POST /actions/pause/{target:path}": Role.OPERATOR,
    "GET /actions/resume/{target:path}": Role.OPERATOR,
    "POST /actions/resume/{target:path}": Role.OPERATOR,
    "GET /actions/cancel/{target:path}": Role.OPERATOR,
    "POST /actions/cancel/{target:path}": Role.OPERATOR,
    "GET /actions/retry/{target:path}": Role.OPERATOR,
    "POST /actions/retry/{target:path}": Role.OPERATOR,
    "GET /actions/bulk": Role.OPERATOR,
    "POST /actions/bulk": Role.OPERATOR,
    "GET /actions/remove/{target:path}": Role.EDITOR,
    "POST /actions/remove/{target:path}": Role.EDITOR,
    "GET /actions/new": Role.EDITOR,
    "GET /actions/edit/{target:path}": Role.EDITOR,
    "POST /actions/check": Role.EDITOR,
    "POST /actions/put": Role.EDITOR,
    "GET /api/v1/openapi.json": Role.VIEWER,
    "GET /api/v1/jobs": Role.VIEWER,
    "GET /api/v1/jobs/{job:path}": Role.VIEWER,
    "PUT /api/v1/jobs/{job:path}": Role.EDITOR,
    "DELETE /api/v1/jobs/{job:path}": Role.EDITOR,
    "POST /api/v1/jobs/{job:path}/check": Role.EDITOR,
    "POST /api/v1/jobs/{job:path}/trigger": Role.OPERATOR,
    "POST /api/v1/jobs/{job:path}/pause": Role.OPERATOR,
    "POST /api/v1/jobs/{job:path}/resume": Role.OPERATOR,
    "POST /api/v1/jobs/{job:path}/retry": Role.OPERATOR,
    "POST /api/v1/runs/{run:path}/retry": Role.OPERATOR,
    "POST /api/v1/runs/{run:path}/cancel": Role.OPERATOR,
    "GET /api/v1/runs": Role.VIEWER,
    "GET /api/v1/runs/{run:path}/log": Role.VIEWER,
    "GET /api/v1/runs/{run:path}": Role.VIEWER,
    "GET /api/v1/queues": Role.VIEWER,
    "GET /api/v1/actions": Role.VIEWER,
    "GET /api/v1/unguarded": Role.VIEWER,
    **{route: role for routes in ROUTES for route, (role, _) in routes.items()},
}


def verb_of(method: str, path: str) -> str:
    """What a route does, by its path; empty if it changes nothing."""
    for routes in ROUTES:
        if row := routes.get(f"{method} {path}"):
            return row[1]
    if method in ("PUT", "DELETE"):
        return "put" if method == "PUT" else "remove"
    word = [part for part in path.split("/") if not part.startswith("{")][-1]
    return "" if method in ("GET", "HEAD") or word == "check" else word
