"""The JSON API: its routes, its operations, and its OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Wanted, latest_failures, search
from supervisor.ledger.queues import Queue, Queues
from supervisor.operate import control
from supervisor.operate.shapes import (
    instant,
    job_shape,
    line_shape,
    params_shape,
    run_shape,
    step_shape,
)
from supervisor.web import api_shapes
from supervisor.web.api_shapes import Error
from supervisor.web.budget import Threads
from supervisor.web.http import Refused, json_body, unless_skipped
from supervisor.web.jobs_page import Filter, Sort, Wish, Worker, crew_of, names_of

# The API as a table: every row is a route, and a part of the OpenAPI document.


#: Prefix of all paths of the table.
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query. `schema` is JSON Schema."""

    name: str
    about: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """answer: of success; is_list: many of them. body: of the request. errors: other codes."""

    name: str
    method: Literal["get", "post"]
    path: str
    about: str
    answer: type[BaseModel]
    is_list: bool = False
    status: int = 200
    queries: Sequence[Query] = ()
    body: type[BaseModel] | None = None
    errors: Sequence[int] = ()


MOST_RUNS = 1_000
MOST_JOBS = 10_000

RUN_LIMIT = Query(
    "limit",
    "The newest so many of those that match.",
    {"type": "integer", "minimum": 1, "maximum": MOST_RUNS},
)
OUTCOME = Query(
    "outcome",
    "Only runs in this state.",
    {"type": "string", "enum": [state.value for state in RunState]},
)

OPERATIONS = (
    Operation(
        *("jobs", "get", "/jobs", "The loaded jobs.", api_shapes.Job),
        is_list=True,
        queries=(
            Query("search", "Only jobs whose name has this in it.", {"type": "string"}),
            Query(
                "state",
                "Only jobs that stand so; late: half a minute past a time, and not started.",
                {"type": "string", "enum": [word.value for word in Filter]},
            ),
            Query(
                "sort",
                "By name, or what the page sorts by; -next is the reverse of next.",
                {"type": "string", "enum": [s + word.value for word in Sort for s in ("", "-")]},
            ),
            Query(
                "limit",
                "Up to that many.",
                {"type": "integer", "minimum": 1, "maximum": MOST_JOBS},
            ),
            Query("after", "Only jobs that come after this one.", {"type": "string"}),
        ),
        errors=(400,),
    ),
    Operation("job", "get", "/jobs/{job}", "One job.", api_shapes.Job, errors=(404,)),
    Operation(
        *("runs", "get", "/runs", "The latest runs, of all jobs or of one.", api_shapes.Run),
        is_list=True,
        queries=(Query("job", "Only runs of this job.", {"type": "string"}), OUTCOME, RUN_LIMIT),
        errors=(400, 404),
    ),
    Operation(
        *(
            "failures",
            "get",
            "/failures",
            "The latest runs of all jobs that failed.",
            api_shapes.Run,
        ),
        is_list=True,
        queries=(RUN_LIMIT,),
        errors=(400,),
    ),
    Operation(
        *("run_log", "get", "/runs/{run}/log", "The lines that a run logged.", api_shapes.LogLine),
        is_list=True,
        errors=(404,),
    ),
    Operation(
        *("run", "get", "/runs/{run}", "One run, with its steps.", api_shapes.WholeRun),
        errors=(404,),
    ),
    Operation("queues", "get", "/queues", "Queues, workers, and runs at work.", api_shapes.Queues),
    Operation("beat", "get", "/beat", "Who emits, and since when.", api_shapes.Beat),
    Operation(
        *(
            "trigger",
            "post",
            "/jobs/{job}/trigger",
            "Run a job now, paused or not.",
            api_shapes.Run,
        ),
        status=201,
        body=api_shapes.Trigger,
        errors=(400, 404, 409),
    ),
    Operation(
        *("pause", "post", "/jobs/{job}/pause", "Exclude the job's ticks.", api_shapes.Paused),
        body=api_shapes.Pause,
        errors=(400, 404),
    ),
    Operation(
        *(
            "resume",
            "post",
            "/jobs/{job}/resume",
            "Emit the job's ticks again.",
            api_shapes.Resumed,
        ),
        body=api_shapes.Resume,
        errors=(400, 404),
    ),
    Operation(
        *("cancel", "post", "/runs/{run}/cancel", "End a run.", api_shapes.Cancelled),
        status=202,
        body=api_shapes.Cancel,
        errors=(400, 404, 409),
    ),
)


Shape = dict[str, Any]


class Api:
    """A method for each operation of the table, under its name."""

    def __init__(self, ledger: Ledger, broker: Queues | None) -> None:
        self._ledger = ledger
        self._broker = broker

    def jobs(self, query: Mapping[str, str]) -> list[Shape]:
        limit = bounded(query, MOST_JOBS, most=MOST_JOBS)
        wanted = after(names_of(self._ledger, wish_of(query), self._ledger.now()), query)[:limit]
        specs = self._ledger.some_specs(wanted)
        known = [specs[name] for name in wanted if name in specs]
        return [job_shape(record) for record in self._ledger.records_of(known)]

    def job(self, job: str) -> Shape:
        return job_shape(self._ledger.job(job))

    def runs(self, query: Mapping[str, str]) -> list[Shape]:
        wanted = Wanted(outcome_of(query), limit=bounded(query, 50, most=MOST_RUNS))
        job = query.get("job")
        names = self._ledger.job_names() if job is None else [self._ledger.spec(job).name]
        return [run_shape(run) for run in search(self._ledger, names, wanted)]

    def failures(self, query: Mapping[str, str]) -> list[Shape]:
        limit = bounded(query, 50, most=MOST_RUNS)
        return [run_shape(run) for run in latest_failures(self._ledger, limit)]

    def run(self, run: str) -> Shape:
        found = self._ledger.run(run)
        steps, params = None, None
        if found.has_steps:
            steps = [step_shape(step) for step in self._ledger.steps.records(run)]
            params = params_shape(found, self._ledger.steps.params(run))
        return run_shape(found) | {"steps": steps, "params": params}

    def run_log(self, run: str) -> list[Shape]:
        known = self._ledger.run(run)
        return [line_shape(line) for line in self._ledger.reports.lines(known.id)]

    def queues(self) -> Shape:
        crew = crew_of(self._ledger, self._broker)
        return {
            "queues": [queue_shape(queue) for queue in crew.queues],
            "workers": [worker_shape(worker) for worker in crew.workers],
            "at_work": {who: [run.id for run in runs] for who, runs in crew.at_work.items()},
        }

    def beat(self) -> Shape:
        beat = self._ledger.beat()
        return {
            "leader": beat.leader,
            "last_tick_at": instant(beat.last_tick_at),
            "last_reload_successful": beat.last_reload_successful,
            "last_reload_at": instant(beat.last_reload_at),
            "problems": beat.problems,
        }

    def trigger(self, job: str, asked: api_shapes.Trigger) -> Shape:
        run = control.trigger(self._ledger, job, asked.as_request())
        return run_shape(unless_skipped(run))

    def pause(self, job: str, asked: api_shapes.Pause) -> Shape:
        until = control.pause(self._ledger, job, asked.note, asked.until)
        return {"job": job, "until": instant(until)}

    def resume(self, job: str, asked: api_shapes.Resume) -> Shape:
        caught_up = control.resume(self._ledger, job, catch_up=asked.catch_up)
        return {"job": job, "caught_up": caught_up}

    def cancel(self, run: str, _: api_shapes.Cancel) -> Shape:
        return {"run": run, "cancellation": control.cancel(self._ledger, run).value}


def queue_shape(queue: Queue) -> Shape:
    return {
        "queue": queue.name,
        "serial": queue.is_serial,
        "jobs": queue.jobs,
        "length": queue.length,
        "consumers": queue.consumers,
        "drained_at": instant(queue.drained_at),
    }


def worker_shape(worker: Worker) -> Shape:
    facts, present = worker.facts, worker.present
    return {
        "worker": worker.name,
        "present": present is not None,
        "last_seen_at": instant(worker.last_seen_at),
        "started_at": instant(present.started_at) if present else None,
        "host": present.host if present else None,
        "pid": present.pid if present else None,
        "queues": facts.queues if facts else [],
        "processes": facts.pool_size if facts else None,
    }


def bounded(query: Mapping[str, str], default: int, most: int) -> int:
    text = query.get("limit")
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= 9 and 0 < int(text) <= most:
        return int(text)
    raise Refused(400, f"limit is a number from 1 to {most:,}")


def wish_of(query: Mapping[str, str]) -> Wish:
    """Raises Refused of what the page would leave out."""
    state, order = query.get("state"), query.get("sort")
    if state is not None and state not in set(Filter):
        raise Refused(400, f"state is one of {', '.join(Filter)}")
    if order is not None and order.removeprefix("-") not in set(Sort):
        raise Refused(400, f"sort is one of {', '.join(Sort)}, or one of them after a -")
    return replace(Wish.of(query), search=query.get("search", ""))


def after(names: list[str], query: Mapping[str, str]) -> list[str]:
    """Those behind the named one; it need not be there any more where they are sorted by name."""
    last = query.get("after")
    if last is None:
        return names
    if query.get("sort", Sort.NAME) == Sort.NAME:
        return [name for name in names if name > last]
    if last not in names:
        raise Refused(400, "after is the name of a job that was listed")
    return names[names.index(last) + 1 :]


def outcome_of(query: Mapping[str, str]) -> RunState | None:
    word = query.get("outcome")
    try:
        return RunState(word) if word is not None else None
    except ValueError:
        raise Refused(400, f"outcome is one of {', '.join(RunState)}") from None


# The OpenAPI 3.1 document of the API, made of the table of its operations.


#: What any operation may answer, whatever it is asked.
ANY_TIME = {
    401: "The token is wrong, or needed and not there.",
    403: "This server has no token, and so no actions; or a page of another origin asks.",
    414: "The address is too long.",
    421: "The Host header names no loopback address.",
    503: "Redis is unavailable, or the answer took too long.",
}

ERRORS = {
    400: "Something that was asked for makes no sense.",
    404: "There is no such job or run.",
    409: "Not done: the run was skipped, or has ended.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(API + operation.path, {})[operation.method] = described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "celery-beat-supervisor",
            "version": "1",
            "description": "Jobs, their runs, and what can be done to them.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(OPERATIONS),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def described(operation: Operation) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "responses": responses(operation),
        # Reading takes the token where others than this machine reach the server.
        "security": [{"token": []}] if operation.method == "post" else [{}, {"token": []}],
    }
    parameters = [*map(in_path, path_names(operation.path)), *map(in_query, operation.queries)]
    if parameters:
        parts["parameters"] = parameters
    if operation.body:
        parts["requestBody"] = {"required": False, "content": content(reference(operation.body))}
    return parts


def path_names(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def in_query(query: Query) -> dict[str, Any]:
    return {
        "name": query.name,
        "in": "query",
        "required": False,
        "description": query.about,
        "schema": query.schema,
    }


def responses(operation: Operation) -> dict[str, Any]:
    one = reference(operation.answer)
    schema = {"type": "array", "items": one} if operation.is_list else one
    answers = {str(operation.status): {"description": "Done.", "content": content(schema)}}
    codes = [*operation.errors, *((413, 415) if operation.body else ())]
    texts = {code: ERRORS[code] for code in codes} | ANY_TIME
    for code, text in sorted(texts.items()):
        answers[str(code)] = {"description": text, "content": content(reference(Error))}
    return answers


def content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def reference(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    models = list(dict.fromkeys(models_of(operations)))
    _, found = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
    )
    defined: dict[str, Any] = found["$defs"]
    return defined


def models_of(operations: Iterable[Operation]) -> Iterator[type[BaseModel]]:
    for operation in operations:
        yield operation.answer
        if operation.body:
            yield operation.body
    yield Error


# From the table of operations to routes.


def api_routes(api: Api, threads: Threads) -> list[Route]:
    described = document()

    async def openapi(_: Request) -> Response:
        return JSONResponse(described)

    return [
        Route(f"{API}/openapi.json", openapi),
        *(route_of(operation, getattr(api, operation.name), threads) for operation in OPERATIONS),
    ]


def route_of(operation: Operation, call: Callable[..., Any], threads: Threads) -> Route:
    # The id of a step has a slash in it.
    path = API + operation.path.replace("{run}", "{run:path}").replace("{job}", "{job:path}")
    return Route(path, endpoint_of(operation, call, threads), methods=[operation.method.upper()])


def endpoint_of(
    operation: Operation, call: Callable[..., Any], threads: Threads
) -> Callable[[Request], Any]:
    async def read(request: Request) -> Response:
        query = (request.query_params,) if operation.queries else ()
        return await threads.run(request, answer, *request.path_params.values(), *query)

    async def act(request: Request) -> Response:
        assert operation.body is not None
        asked = await json_body(request, operation.body)
        return await threads.run(request, answer, *request.path_params.values(), asked)

    def answer(*given: Any) -> Response:
        return JSONResponse(call(*given), operation.status)

    return act if operation.body else read
