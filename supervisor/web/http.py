"""What all routes share: budgets and threads, templates, errors as answers, bodies of requests."""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import redis
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from supervisor.errors import (
    Conflict,
    InvalidJob,
    InvalidKey,
    InvalidRequest,
    JobConflict,
    NotConfigured,
    NotFound,
)
from supervisor.job.changes import value
from supervisor.job.run import Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.logs import get_logger
from supervisor.operate import shapes
from supervisor.operate.job_edits import Document
from supervisor.operate.plans import clock_change_text
from supervisor.operate.shapes import iso_utc
from supervisor.operate.words import (
    age,
    ahead,
    dropped_words,
    duration,
    harmless,
    items_words,
    param_words,
    pause_words,
    progress_words,
    reason_words,
    share_of_step,
    span,
    stamp,
    targets,
    what_words,
    where,
    who,
)
from supervisor.settings import Settings
from supervisor.store.connection import connect_for_answers, explained
from supervisor.store.keys import Keys

# How long an answer may take, and the threads that answers are made in.
#
# 1. Calls to Redis block, so requests run in threads. The event loop waits for one until the
#    request's budget is spent; then the answer is a 503, whatever the thread does.
# 2. A request that has waited for a thread until then is never begun.
# 3. A request whose budget is spent, or whose client has left, ends at its next call to Redis or
#    its next `check`: no thread works for an answer that is not read.
# 4. Requests that hang occupy threads. So /metrics and /readyz have threads of their own.


#: For a whole request. Prometheus gives up a scrape after 10 s; most proxies wait longer.
BUDGET_SECONDS = 4.0

#: The broker's part of it. Lengths that the broker has not answered by then are left out.
BROKER_SECONDS = 1.0

THREADS = 16

P = ParamSpec("P")
T = TypeVar("T")


class OutOfTime(Exception):
    """The answer took too long, or its client has left."""


class Budget:
    """The time that a request has, from its arrival."""

    def __init__(self, seconds: float = BUDGET_SECONDS) -> None:
        self._ends_at = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())

    def end(self) -> None:
        self._ends_at = 0.0


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def check() -> None:
    """Raises OutOfTime in the thread of a request whose budget is spent."""
    budget = _current.get()
    if budget is not None and not budget.seconds_left:
        raise OutOfTime("this takes too long: ask for less")


class BudgetedRedis(redis.Redis):
    """Refuses calls of a request whose budget is spent."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        check()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        check()
        return super().pipeline(*args, **options)


def ledger_for_answers(settings: Settings) -> Ledger:
    """Raises NotConfigured."""
    return Ledger(connect_for_answers(settings, BudgetedRedis), Keys.of(settings))


class Threads:
    """Threads for requests of one kind. seconds: the most of its budget that a request may take."""

    def __init__(self, number: int = THREADS, seconds: float = BUDGET_SECONDS) -> None:
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="answers")

    async def run(
        self, request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the function returns. Raises OutOfTime, and what the function raises.

        The request's body must have been read, or have none.
        """
        budget = Budget(min(self._seconds, request.state.budget.seconds_left))
        context = copy_context()
        context.run(_current.set, budget)
        submitted = self._pool.submit(lambda: context.run(function, *args, **kwargs))
        work = asyncio.wrap_future(submitted)
        leaving = asyncio.ensure_future(left(request))
        try:
            await asyncio.wait(
                (work, leaving), timeout=budget.seconds_left, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            raise OutOfTime("the answer took too long: the ledger is slow, or much was asked for")
        finally:
            budget.end()
            work.cancel()
            leaving.cancel()


async def left(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class BoundedQueues:
    """The queues of a broker that may hang; their lengths are unknown then."""

    def __init__(self, broker: Queues) -> None:
        self._broker = broker
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="broker")

    def of(self, spec: JobSpec) -> tuple[str, ...]:
        return self._broker.of(spec)

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:
        asked = self._threads.submit(self._broker.lengths, queues)
        try:
            return asked.result(BROKER_SECONDS)
        except TimeoutError:
            asked.cancel()
            return {}


# Templates. Everything is escaped.


def shown(value: Any) -> Any:
    """A value in a page, without characters that would reverse the text beside it."""
    return harmless(value) if type(value) is str else value


def coded(text: str) -> Markup:
    """Marks text between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(harmless(text)))))


def breakable(text: str) -> Markup:
    """Text that may break after a bracket, a slash or a sign, and so less often within a word."""
    parts = re.split(r"(?<=[(/=,])(?=\S)", harmless(text))
    return Markup("<wbr>").join(escape(part) for part in parts)


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


LONGEST_NAME = 60

#: Colours that page.css has for installations.
HUES = 6


@dataclass(frozen=True, slots=True)
class Installation:
    """What tells one installation's pages from another's: its name, and a colour for that name."""

    name: str = ""

    @property
    def hue(self) -> int | None:
        """The number of a colour; None without a name."""
        return zlib.crc32(self.name.encode()) % HUES if self.name else None


def place_of(request: Request) -> dict[str, Any]:
    """For the layout: the root that addresses are relative to, the page's own address, its
    visitor, and the installation.
    """
    raw_path = request.scope["raw_path"].decode("latin-1")
    path = raw_path.removeprefix(root_of(request)).lstrip("/")
    query = request.scope["query_string"].decode("latin-1")
    here = f"./{path}" + (f"?{query}" if query else "")
    return {
        "root": root_of(request),
        "here": here,
        "visitor": request.state.visitor,
        "installation": request.app.state.installation,
    }


def root_of(request: Request) -> str:
    """What all our addresses begin with: the path below which a proxy serves us, or empty."""
    return str(request.scope["root_path"])


def path_of(request: Request) -> str:
    """The path as the routes have it; `request.url` depends on the Host header."""
    return str(request.scope["path"]).removeprefix(root_of(request))


def actor_of(request: Request) -> Actor:
    """The visitor, for the record of actions."""
    visitor = request.state.visitor
    return visitor_at(request, visitor.name, "page" if visitor.is_person else "api")


def visitor_at(request: Request, name: str = "", origin: str = "page") -> Actor:
    """The visitor and the address; without a name, an unknown visitor."""
    peer = request.client
    return Actor(name, origin, peer.host if peer else "")


# Addresses are relative to the root of the server.


def job_url(name: str) -> str:
    return f"jobs/{quote(name, safe='')}"


def run_url(run_id: str) -> str:
    return f"runs/{quote(run_id, safe='@:+/')}"


def action_url(verb: str, target: str) -> str:
    return f"actions/{verb}/{quote(target, safe='@:+/')}"


def local(moment: datetime, spec: JobSpec) -> str:
    """The time by the clocks of the job."""
    there = moment.astimezone(spec.zone)
    return f"{there:%a %Y-%m-%d %H:%M}{f':{there:%S}' if there.second else ''} {there:%Z}"


TEMPLATES.filters.update(
    breakable=breakable,
    action_url=action_url,
    age=age,
    ahead=ahead,
    brief=brief,
    code=coded,
    dropped=dropped_words,
    duration=duration,
    host=lambda url: urlsplit(url).hostname,
    instant=iso_utc,
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
    clock_change=clock_change_text,
    value=value,
)


log = get_logger("supervisor.web")


class Refused(HTTPException):
    """The request is not carried out, for people in a sentence. The API answers `facts` as well."""

    def __init__(self, status: int, text: str, **facts: Any) -> None:
        super().__init__(status, text)
        self.facts = facts

    def __str__(self) -> str:
        return self.detail


def unless_skipped(run: Run) -> Run:
    """Raises Refused for a run that was skipped; it stays on record as such."""
    if run.state is RunState.SKIPPED:
        raise Refused(409, f"skipped: {reason_words(run)}", run=shapes.Run.dumped(run))
    return run


def problem_response(request: Request, problem: HTTPException) -> Response:
    status, headers = problem.status_code, dict(problem.headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (400, 413, 503):
        headers["Connection"] = "close"  # the rest of a body is not waited for, nor guessed at
    if path_of(request).startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        facts = problem.facts if isinstance(problem, Refused) else {}
        return JSONResponse({"error": problem.detail, **facts}, status, headers)
    text = TEMPLATES.get_template("problem.html").render(problem=problem, **place_of(request))
    return HTMLResponse(text, status, problem.headers)


def ledger_unavailable(request: Request, error: Exception) -> Response:
    """Does not show the error, which contains the ledger's address and is logged."""
    log.warning("ledger unavailable", error=explained(error))
    return problem_response(request, Refused(503, "the ledger is unavailable"))


def refused(request: Request, error: Exception) -> Response:
    """By us, or because there is no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    return problem_response(request, error)


def invalid_job(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidJob)
    return problem_response(request, Refused(422, str(error), problems=error.problems))


def job_conflict(request: Request, error: Exception) -> Response:
    assert isinstance(error, JobConflict)
    return problem_response(request, Refused(412, str(error), version=error.version))


def answered_with(status: int) -> Callable[[Request, Exception], Response]:
    return lambda request, error: problem_response(request, Refused(status, str(error)))


EXCEPTION_HANDLERS = {
    HTTPException: refused,
    RedisError: ledger_unavailable,
    OSError: ledger_unavailable,
    OutOfTime: answered_with(503),
    NotFound: answered_with(404),
    InvalidKey: answered_with(400),
    InvalidRequest: answered_with(400),
    InvalidJob: invalid_job,
    JobConflict: job_conflict,
    Conflict: answered_with(409),
    NotConfigured: answered_with(409),
}


# Bodies of requests.


#: Larger arguments of a run belong where the job can fetch them.
MOST_BYTES = 64 * 1024

MOST_FIELDS = 50

Body = TypeVar("Body", bound=BaseModel)


async def bounded_body(request: Request) -> bytes:
    """The body. Raises OutOfTime if it is sent too slowly, and Refused if it is too large."""
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
    """The body as a JSON object; an empty body is an empty object."""
    return validated(model, await json_text(request) or b"{}")


async def document_body(request: Request) -> Document:
    """The keys of a job, which are checked later, with the job."""
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
        raise Refused(403, "this form is not valid any more: load its page again")
    return fields


async def form_body(request: Request) -> dict[str, str]:
    text = (await bounded_body(request)).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise Refused(400, f"the form has more than {MOST_FIELDS} fields") from error


def validated(model: type[Body], text: str | bytes) -> Body:
    """The valid value. Raises Refused, with everything that is wrong in one line."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise Refused(400, "; ".join(map(fault_text, faults))) from error


def fault_text(fault: object) -> str:
    assert isinstance(fault, dict)
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else str(fault["msg"])


# JSON as people send it.


#: As deep as a schedule file may be.
DEEPEST = 20


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
    found: dict[str, Any] = {}
    for name, item in pairs:
        if name in found:
            raise ValueError(f"{name!r} is given twice")
        found[name] = item
    return found


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
