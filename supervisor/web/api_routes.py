"""From the table of operations to routes. What asks Redis blocks, and runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supervisor.web.api import Api
from supervisor.web.bodies import json_body
from supervisor.web.openapi import document
from supervisor.web.operations import API, OPERATIONS, Operation


def api_routes(api: Api) -> list[Route]:
    described = document()

    def openapi(_: Request) -> Response:
        return JSONResponse(described)

    return [
        Route(f"{API}/openapi.json", openapi),
        *(route_of(operation, getattr(api, operation.name)) for operation in OPERATIONS),
    ]


def route_of(operation: Operation, call: Callable[..., Any]) -> Route:
    # The id of a step has a slash in it.
    path = API + operation.path.replace("{run}", "{run:path}").replace("{job}", "{job:path}")
    return Route(path, endpoint_of(operation, call), methods=[operation.method.upper()])


def endpoint_of(operation: Operation, call: Callable[..., Any]) -> Callable[[Request], Any]:
    def read(request: Request) -> Response:
        query = (request.query_params,) if operation.queries else ()
        return JSONResponse(call(*request.path_params.values(), *query), operation.status)

    async def act(request: Request) -> Response:
        assert operation.body is not None
        asked = await json_body(request, operation.body)
        done = await run_in_threadpool(call, *request.path_params.values(), asked)
        return JSONResponse(done, operation.status)

    return act if operation.body else read
