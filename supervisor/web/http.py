"""What all routes share: templates, errors as answers, bodies of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from supervisor.errors import (
    InvalidJob,
    InvalidKey,
    InvalidRequest,
    JobConflict,
    JobElsewhere,
    NotConfigured,
    RunEnded,
    TooManyJobs,
    UnknownJob,
    UnknownRun,
)
from supervisor.job.changes import value
from supervisor.job.run import Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Actor
from supervisor.ledger.connection import explained
from supervisor.logs import get_logger
from supervisor.operate.job_documents import Document
from supervisor.operate.record import targets, what_words, where, who
from supervisor.operate.shapes import (
    harmless,
    instant,
    items_words,
    param_words,
    progress_words,
    run_shape,
    share_of_step,
)
from supervisor.operate.tables import dropped_words, surprise_text, why
from supervisor.operate.words import age, ahead, duration, pause_words, span, stamp
from supervisor.web.budget import OutOfTime
from supervisor.web.job_form import loads

# Templates. Everything is escaped.


def shown(value: Any) -> Any:
    """A value in a page, without characters that would reverse the text beside it."""
    return harmless(value) if type(value) is str else value


TEMPLATES = Environment(
    loader=PackageLoader("supervisor.web"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=shown,
    trim_blocks=True,
    lstrip_blocks=True,
)


def brief(run_id: str, job: str, now: datetime) -> str:
    """A run's id without the name of its job, and without the date if that is today's."""
    return run_id.removeprefix(f"{job}@").removeprefix(f"{now.astimezone(UTC):%Y-%m-%d}T")


def place_of(request: Request) -> dict[str, Any]:
    """For the layout: the root that addresses are relative to, that of the page itself, and who
    sees it.
    """
    visitor = request.state.visitor
    path = request.scope["raw_path"].decode("latin-1").lstrip("/")
    query = request.scope["query_string"].decode("latin-1")
    here = f"./{path}" + (f"?{query}" if query else "")
    return {"root": visitor.root, "here": here, "visitor": visitor}


def actor_of(request: Request) -> Actor:
    """Who asks, for the record of actions."""
    visitor = request.state.visitor
    return visitor_at(request, visitor.name, "page" if visitor.is_person else "api")


def visitor_at(request: Request, name: str = "", origin: str = "page") -> Actor:
    """Without a name: one who is not known."""
    peer = request.client
    return Actor(name, origin, peer.host if peer else "")


# Addresses are relative to the root of the visitor's session, or of the server.


def job_url(name: str) -> str:
    return f"jobs/{quote(name, safe='')}"


def run_url(run_id: str) -> str:
    return f"runs/{quote(run_id, safe='@:+/')}"


def action_url(verb: str, target: str) -> str:
    return f"actions/{verb}/{quote(target, safe='@:+/')}"


def local(moment: datetime, spec: JobSpec) -> str:
    """By the clocks of the job."""
    there = moment.astimezone(spec.zone)
    return f"{there:%a %Y-%m-%d %H:%M}{f':{there:%S}' if there.second else ''} {there:%Z}"


TEMPLATES.filters.update(
    action_url=action_url,
    age=age,
    ahead=ahead,
    brief=brief,
    dropped=dropped_words,
    duration=duration,
    host=lambda url: urlsplit(url).hostname,
    instant=instant,
    items=items_words,
    job_url=job_url,
    local=local,
    params=param_words,
    pause=pause_words,
    progress=progress_words,
    run_url=run_url,
    share=share_of_step,
    span=span,
    targets=targets,
    what=lambda entry: "; ".join(what_words(entry)),
    where=where,
    who=who,
    stamp=stamp,
    surprise=surprise_text,
    value=value,
    why=why,
)


log = get_logger("supervisor.web")


@dataclass(frozen=True, slots=True)
class Problem:
    """An HTTP status and, for people, a sentence."""

    status: int
    text: str


class Refused(Exception):
    """The request is not carried out; `facts` go into the answer of the API."""

    def __init__(self, status: int, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.problem = Problem(status, text)
        self.facts = facts


def unless_skipped(run: Run) -> Run:
    """Raises Refused for a run that was skipped; it stays on record as such."""
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


def not_served(request: Request, error: Exception) -> Response:
    """No such route, or not by this method."""
    assert isinstance(error, HTTPException)
    answer = problem_response(request, Problem(error.status_code, error.detail))
    answer.headers.update(error.headers or {})
    return answer


def invalid_job(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidJob)
    return problem_response(request, Problem(422, str(error)), problems=error.problems)


def changed_meanwhile(request: Request, error: Exception) -> Response:
    assert isinstance(error, JobConflict)
    return problem_response(request, Problem(412, str(error)), version=error.version)


def answered_with(status: int) -> Callable[[Request, Exception], Response]:
    return lambda request, error: problem_response(request, Problem(status, str(error)))


EXCEPTION_HANDLERS = {
    HTTPException: not_served,
    Refused: refused,
    RedisError: ledger_unavailable,
    OSError: ledger_unavailable,
    OutOfTime: answered_with(503),
    UnknownJob: answered_with(404),
    UnknownRun: answered_with(404),
    InvalidKey: answered_with(400),
    InvalidRequest: answered_with(400),
    RunEnded: answered_with(409),
    InvalidJob: invalid_job,
    JobConflict: changed_meanwhile,
    JobElsewhere: answered_with(409),
    TooManyJobs: answered_with(409),
    NotConfigured: answered_with(409),
}


# Bodies of requests.


#: Larger arguments of a run belong where the job can fetch them.
MOST_BYTES = 64 * 1024

MOST_FIELDS = 50

Body = TypeVar("Body", bound=BaseModel)


async def bounded_body(request: Request) -> bytes:
    """Raises OutOfTime where it is sent too slowly, and Refused where it is too large."""
    body = bytearray()
    try:
        async with asyncio.timeout(request.state.budget.seconds_left):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise Refused(413, f"the body has more than {MOST_BYTES:,} bytes")
    except TimeoutError as error:
        raise OutOfTime("the body was sent too slowly") from error
    return bytes(body)


async def json_body(request: Request, model: type[Body]) -> Body:
    """An empty body is an empty object."""
    return validated(model, await json_text(request) or b"{}")


async def document_body(request: Request) -> Document:
    """The keys of a job, which are checked where the job is."""
    try:
        document = loads(await json_text(request))
    except ValueError as error:
        raise Refused(400, f"the body is no JSON of a job: {error}") from error
    if not isinstance(document, dict):
        raise Refused(400, "the body is not an object of a job's keys")
    return document


async def json_text(request: Request) -> bytes:
    text = await bounded_body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if text and kind != "application/json":
        raise Refused(415, "the body must be application/json")
    return text


async def form_body(request: Request) -> dict[str, str]:
    text = (await bounded_body(request)).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise Refused(400, f"the form has more than {MOST_FIELDS} fields") from error


def validated(model: type[Body], text: str | bytes) -> Body:
    """Raises Refused with all that is wrong in one line."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise Refused(400, "; ".join(map(fault_text, faults))) from error


def fault_text(fault: object) -> str:
    assert isinstance(fault, dict)
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else str(fault["msg"])
