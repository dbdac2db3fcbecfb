"""The roles, and which of them each route takes: the one place that says so.

A server with a route that is not in `NEEDS` does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto


class Role(StrEnum):
    """Each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    EDITOR = "editor"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class About(StrEnum):
    """What a route is about. Who sees some jobs only gets nothing of what is about ALL jobs.

    SEEN: those that its visitor sees, or one that is not there yet. JOB, RUN: the one in its path.
    """

    ALL = auto()
    SEEN = auto()
    JOB = auto()
    RUN = auto()


@dataclass(frozen=True, slots=True)
class Need:
    """role: None for a route that is for everybody."""

    role: Role | None
    about: About = About.ALL


EVERYBODY = Need(None)

#: "<method> <path>", as the routes spell it. HEAD is GET.
NEEDS: Mapping[str, Need] = {
    "GET /healthz": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /login": EVERYBODY,
    "POST /login": EVERYBODY,
    "POST /logout": EVERYBODY,
    "GET /metrics": Need(Role.VIEWER, About.ALL),
    "GET /events": Need(Role.VIEWER, About.SEEN),
    "GET /": Need(Role.VIEWER, About.SEEN),
    "GET /failures": Need(Role.VIEWER, About.SEEN),
    "GET /queues": Need(Role.VIEWER, About.ALL),
    "GET /record": Need(Role.VIEWER, About.ALL),
    "GET /jobs/{target:path}": Need(Role.VIEWER, About.JOB),
    "GET /runs/{target:path}": Need(Role.VIEWER, About.RUN),
    "GET /actions/trigger/{target:path}": Need(Role.OPERATOR, About.JOB),
    "POST /actions/trigger/{target:path}": Need(Role.OPERATOR, About.JOB),
    "GET /actions/pause/{target:path}": Need(Role.OPERATOR, About.JOB),
    "POST /actions/pause/{target:path}": Need(Role.OPERATOR, About.JOB),
    "GET /actions/resume/{target:path}": Need(Role.OPERATOR, About.JOB),
    "POST /actions/resume/{target:path}": Need(Role.OPERATOR, About.JOB),
    "GET /actions/cancel/{target:path}": Need(Role.OPERATOR, About.RUN),
    "POST /actions/cancel/{target:path}": Need(Role.OPERATOR, About.RUN),
    "GET /actions/remove/{target:path}": Need(Role.EDITOR, About.JOB),
    "POST /actions/remove/{target:path}": Need(Role.EDITOR, About.JOB),
    "GET /actions/new": Need(Role.EDITOR, About.SEEN),
    "GET /actions/edit/{target:path}": Need(Role.EDITOR, About.JOB),
    "POST /actions/check": Need(Role.EDITOR, About.SEEN),
    "POST /actions/put": Need(Role.EDITOR, About.SEEN),
    "GET /api/v1/openapi.json": Need(Role.VIEWER, About.SEEN),
    "GET /api/v1/jobs": Need(Role.VIEWER, About.SEEN),
    "GET /api/v1/jobs/{job:path}": Need(Role.VIEWER, About.JOB),
    "PUT /api/v1/jobs/{job:path}": Need(Role.EDITOR, About.SEEN),
    "DELETE /api/v1/jobs/{job:path}": Need(Role.EDITOR, About.JOB),
    "POST /api/v1/jobs/{job:path}/check": Need(Role.EDITOR, About.SEEN),
    "POST /api/v1/jobs/{job:path}/trigger": Need(Role.OPERATOR, About.JOB),
    "POST /api/v1/jobs/{job:path}/pause": Need(Role.OPERATOR, About.JOB),
    "POST /api/v1/jobs/{job:path}/resume": Need(Role.OPERATOR, About.JOB),
    "POST /api/v1/runs/{run:path}/cancel": Need(Role.OPERATOR, About.RUN),
    "GET /api/v1/runs": Need(Role.VIEWER, About.SEEN),
    "GET /api/v1/failures": Need(Role.VIEWER, About.SEEN),
    "GET /api/v1/runs/{run:path}/log": Need(Role.VIEWER, About.RUN),
    "GET /api/v1/runs/{run:path}": Need(Role.VIEWER, About.RUN),
    "GET /api/v1/queues": Need(Role.VIEWER, About.ALL),
    "GET /api/v1/actions": Need(Role.VIEWER, About.ALL),
    "GET /api/v1/unguarded": Need(Role.VIEWER, About.ALL),
    "GET /api/v1/beat": Need(Role.VIEWER, About.SEEN),
}
