"""The OpenAPI 3.1 document of the API, made of the table of its operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from supervisor.web.answers import Error
from supervisor.web.operations import API, OPERATIONS, Operation, Query

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
