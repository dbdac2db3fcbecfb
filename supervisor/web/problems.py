"""Refusals and errors as answers: JSON for programs, a page for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from supervisor.display.rows import why
from supervisor.display.shapes import run_shape
from supervisor.ledger.connection import explained
from supervisor.runs.run import Run, RunState
from supervisor.web.rendering import TEMPLATES, place_of

log = structlog.get_logger("supervisor.web")


@dataclass(frozen=True, slots=True)
class Problem:
    """An HTTP status and, for people, a sentence."""

    status: int
    text: str


class Refused(Exception):
    """What was asked for is not done; `facts` go into the answer of the API."""

    def __init__(self, status: int, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.problem = Problem(status, text)
        self.facts = facts


def unless_skipped(run: Run) -> Run:
    """Raises Refused of a run that was asked for and is skipped: it stays on record as such."""
    if run.state is RunState.SKIPPED:
        raise Refused(409, f"skipped: {why(run)}", run=run_shape(run))
    return run


def problem_response(request: Request, problem: Problem, **facts: Any) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if problem.status in (413, 503):
        headers["Connection"] = "close"  # the rest of a body is not waited for
    if request.scope["path"].startswith("/api/") or "text/html" not in request.headers.get(
        "accept", ""
    ):
        return JSONResponse({"error": problem.text, **facts}, problem.status, headers)
    text = TEMPLATES.get_template("problem.html").render(problem=problem, **place_of(request))
    return HTMLResponse(text, problem.status)


def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem_response(request, error.problem, **error.facts)


def ledger_unavailable(request: Request, error: Exception) -> Response:
    """The error has the ledger's address in it: that is for the log."""
    log.warning("ledger unavailable", error=explained(error))
    return problem_response(request, Problem(503, "the ledger is unavailable"))


def out_of_time(request: Request, error: Exception) -> Response:
    return problem_response(request, Problem(503, str(error)))


def unknown(request: Request, error: Exception) -> Response:
    return problem_response(request, Problem(404, str(error)))


def not_served(request: Request, error: Exception) -> Response:
    """Of no route, or not by this method."""
    assert isinstance(error, HTTPException)
    answer = problem_response(request, Problem(error.status_code, error.detail))
    answer.headers.update(error.headers or {})
    return answer


def too_late(request: Request, error: Exception) -> Response:
    return problem_response(request, Problem(409, str(error)))


def not_valid(request: Request, error: Exception) -> Response:
    return problem_response(request, Problem(400, str(error)))
