"""From the table of operations to routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supervisor.web.api import Api
from supervisor.web.bodies import json_body
from supervisor.web.budget import Threads
from supervisor.web.openapi import document
from supervisor.web.operations import API, OPERATIONS, Operation


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
