"""What all routes share: the visitor, errors as answers, bodies of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from supervisor.catalog.faults import in_words
from supervisor.catalog.yaml_source import DEEPEST
from supervisor.errors import (
    Conflict,
    InvalidJob,
    InvalidKey,
    InvalidRequest,
    JobConflict,
    NotConfigured,
    NotFound,
)
from supervisor.job.run import Run, RunState
from supervisor.ledger.actions import Actor
from supervisor.logs import get_logger
from supervisor.operate import shapes
from supervisor.operate.job_documents import Document
from supervisor.operate.words import reason_words
from supervisor.store.failures import explained
from supervisor.web.budget import OutOfTime, Threads
from supervisor.web.templating import page, path_of


def actor_of(request: Request) -> Actor:
    """The visitor, for the record of actions."""
    visitor = request.state.visitor
    return visitor_at(request, visitor.name, "page" if visitor.is_person else "api")


def visitor_at(request: Request, name: str = "", origin: str = "page") -> Actor:
    """The visitor and the address; without a name, an unknown visitor."""
    peer = request.client
    return Actor(name, origin, peer.host if peer else "")


log = get_logger("supervisor.web")


class RequestRefused(HTTPException):
    """The request is refused, in a sentence for people. The API answers `fields` as well."""

    def __init__(self, status: int, text: str, **fields: Any) -> None:
        super().__init__(status, text)
        self.fields = fields

    def __str__(self) -> str:
        return self.detail


def unless_skipped(run: Run) -> Run:
    """Raises Refused for a run that was skipped; it stays on record as such."""
    if run.state is RunState.SKIPPED:
        raise RequestRefused(409, f"skipped: {reason_words(run)}", run=shapes.Run.dumped(run))
    return run


def problem_response(
    request: Request, problem: HTTPException, *, reloads: bool = False
) -> Response:
    """reloads: the page asks for itself again until there is an answer."""
    status, headers = problem.status_code, dict(problem.headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (400, 413, 503):
        headers["Connection"] = "close"  # the rest of a body is not waited for, nor guessed at
    if path_of(request).startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        fields = problem.fields if isinstance(problem, RequestRefused) else {}
        return JSONResponse({"error": problem.detail, **fields}, status, headers)
    answer = page(request, "problem.html", status, problem=problem, reloads=reloads)
    answer.headers.update(headers)
    return answer


def ledger_unavailable(request: Request, error: Exception) -> Response:
    """Does not show the error, which contains the ledger's address and is logged."""
    log.warning("ledger unavailable", error=explained(error))
    problem = RequestRefused(503, "the ledger is unavailable")
    return problem_response(request, problem, reloads=request.method == "GET")


def refused(request: Request, error: Exception) -> Response:
    """By us, or because there is no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    return problem_response(request, error)


def failed(request: Request, _: Exception) -> Response:
    """For an error without a handler. It is raised again, and uvicorn logs its traceback."""
    path = path_of(request)
    log.error("request failed", path=path)
    return problem_response(request, HTTPException(500, f"an error, which is logged: {path}"))


def answered_with(status: int, *names: str) -> Callable[[Request, Exception], Response]:
    """names: attributes of the error that the API answers as well."""

    def answer(request: Request, error: Exception) -> Response:
        also = {name: getattr(error, name) for name in names}
        return problem_response(request, RequestRefused(status, str(error), **also))

    return answer


EXCEPTION_HANDLERS = {
    HTTPException: refused,
    RedisError: ledger_unavailable,
    OSError: ledger_unavailable,
    OutOfTime: answered_with(503),
    NotFound: answered_with(404),
    InvalidKey: answered_with(400),
    InvalidRequest: answered_with(400),
    InvalidJob: answered_with(422, "problems"),
    JobConflict: answered_with(412, "version"),
    Conflict: answered_with(409),
    NotConfigured: answered_with(409),
}


# Bodies of requests.


#: Larger arguments of a run belong where the job can fetch them.
MOST_BYTES = 64 * 1024

#: Of a body that is larger, so much is read and thrown away: where a connection is closed with a
#: part of it unread, the client gets no answer, but a reset.
MOST_READ_BYTES = 8 * 1024 * 1024

MOST_FIELDS = 50

Body = TypeVar("Body", bound=BaseModel)


async def bounded_body(request: Request) -> bytes:
    """The body. Raises OutOfTime if it is sent too slowly, and Refused if it is too large."""
    body, length = bytearray(), 0
    try:
        async with asyncio.timeout(request.state.budget.seconds_left):
            async for chunk in request.stream():
                length += len(chunk)
                if length <= MOST_BYTES:
                    body += chunk
                elif length > MOST_READ_BYTES:
                    break
    except TimeoutError as error:
        raise OutOfTime("the body was sent too slowly") from error
    if length > MOST_BYTES:
        raise RequestRefused(413, f"the body has more than {MOST_BYTES:,} bytes")
    return bytes(body)


async def json_body(request: Request, model: type[Body]) -> Body:
    """The body as a JSON object; an empty body is an empty object."""
    return validated(model, await json_text(request) or b"{}")


async def document_body(request: Request) -> Document:
    """The keys of a job, which are checked later, with the job."""
    try:
        document = loads(await json_text(request))
    except ValueError as error:
        raise RequestRefused(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestRefused(400, "the body is not an object of a job's keys")
    return document


async def json_text(request: Request) -> bytes:
    text = await bounded_body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if text and kind != "application/json":
        raise RequestRefused(415, "the body must be application/json")
    return text


def form_endpoint(
    threads: Threads, answer: Callable[[Request, Mapping[str, str]], Response]
) -> Callable[[Request], Any]:
    """Answers in a thread, with the fields of the form that is sent; none for a GET."""

    async def endpoint(request: Request) -> Response:
        fields = await signed_form(request) if request.method == "POST" else {}
        return await threads.run(request, answer, request, fields)

    return endpoint


async def signed_form(request: Request) -> dict[str, str]:
    """The fields of a form that was made for this visitor. Raises Refused for any other."""
    fields = await form_body(request)
    token = request.state.visitor.form_token
    if token is None or not token.fits(fields.pop("csrf", "")):
        raise RequestRefused(403, "this form is not valid any more: load its page again")
    return fields


async def form_body(request: Request) -> dict[str, str]:
    text = (await bounded_body(request)).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise RequestRefused(400, f"the form has more than {MOST_FIELDS} fields") from error


def validated(model: type[Body], text: str | bytes) -> Body:
    """The valid value. Raises Refused, with everything that is wrong in one line."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise RequestRefused(400, "; ".join(in_words(error, model))) from error


# JSON as people send it.


def loads(text: str | bytes) -> Any:
    """Reads JSON, without what other parsers read differently. Raises ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=without_repeats, parse_constant=refused_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_depth(value, DEEPEST)
    return value


TOO_DEEP = f"nested deeper than {DEEPEST} levels"


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            raise ValueError(f"{name!r} is given twice")
        value[name] = item
    return value


def refused_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def check_depth(value: Any, levels: int) -> None:
    """Raises ValueError."""
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ValueError(TOO_DEEP)
    for item in value.values() if isinstance(value, dict) else value:
        check_depth(item, levels - 1)
