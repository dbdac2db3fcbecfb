"""The OpenAPI 3.1 document of the JSON API, made of its operations."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pydantic import TypeAdapter

from supervisor.catalog.schema import json_schema
from supervisor.operate.shapes import Error
from supervisor.web.operations import Operation, Schema

#: Prefix of all paths.
API = "/api/v1"

ERRORS = {
    400: "Something in the request is not valid.",
    404: "There is no such job, run or silence.",
    409: "Nothing was changed: the run was skipped, or has ended; or the job is from elsewhere.",
    412: "The job has another version; nothing was changed.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The job has problems, or others follow it; all of that is listed.",
}

#: What any operation may answer.
ALWAYS = {
    401: "The token is wrong, or required and missing.",
    403: "The role does not allow it; no token, and so no actions; or another origin's page asks.",
    414: "The address is too long.",
    421: "The Host header names no loopback address.",
    503: "Redis is unavailable, or the answer took too long.",
}


def document_of(operations: Sequence[Operation]) -> Schema:
    bodies = {each.name: each.body for each in operations if each.body}
    schemas, definitions = TypeAdapter.json_schemas(
        [
            *((each.name, "serialization", each.answer) for each in operations),
            *((name, "validation", TypeAdapter(body)) for name, body in bodies.items()),
            ("error", "validation", TypeAdapter(Error)),
        ],
        by_alias=False,
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Schema] = {}
    for each in operations:
        texts = {code: ERRORS[code] for code in each.errors} | ALWAYS
        error = schemas["error", "validation"]
        parts = {
            "operationId": each.name,
            "summary": each.about,
            "responses": answers_of(each, schemas[each.name, "serialization"])
            | {str(code): described(text, error) for code, text in sorted(texts.items())},
            # Reading takes the token where others than this machine reach the server.
            "security": [{}, {"token": []}] if each.method == "get" else [{"token": []}],
        }
        if parameters := parameters_of(each):
            parts["parameters"] = parameters
        if each.body:
            body = schemas[each.name, "validation"]
            parts["requestBody"] = {"required": False, "content": content(body)}
        if each.takes_document:
            keys = {"$ref": f"#/components/schemas/{KEYS_OF_A_JOB}"}
            parts["requestBody"] = {"required": True, "content": content(keys)}
        paths.setdefault(API + each.path, {})[each.method] = parts
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "celery-beat-supervisor",
            "version": "1",
            "description": "Jobs, their runs, and what can be done to them.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas_of_keys() | definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


KEYS_OF_A_JOB = "JobKeys"


def schemas_of_keys() -> dict[str, Schema]:
    """The schemas of a job's keys as in a schedule file, and what they refer to."""
    text = json.dumps(json_schema()["$defs"]).replace("#/$defs/", "#/components/schemas/")
    schemas: dict[str, Schema] = json.loads(text)
    del schemas["Defaults"]
    return {KEYS_OF_A_JOB: schemas.pop("Job"), **schemas}


def answers_of(operation: Operation, schema: Schema) -> dict[str, Schema]:
    """The answers to a request that succeeds."""
    if operation.status == 204:
        return {"204": {"description": "Done."}}
    answer = described("Done.", schema)
    if operation.has_version:
        about = "The version of the job, for If-Match."
        answer["headers"] = {"ETag": {"description": about, "schema": {"type": "string"}}}
    made = {"201": {**answer, "description": "Made."}} if operation.method == "put" else {}
    return {str(operation.status): answer} | made


PRECONDITIONS = {
    "If-Match": 'The ETag of the job that this replaces, or * for any: "7".',
    "If-None-Match": "*: only if there is no such job.",
}


def parameters_of(operation: Operation) -> list[Schema]:
    text = {"type": "string"}
    headers = PRECONDITIONS if operation.takes_preconditions else {}
    return [
        *(parameter("path", name, text) for name in re.findall(r"{(\w+)}", operation.path)),
        *(parameter("query", query.name, query.schema, query.about) for query in operation.queries),
        *(parameter("header", name, text, about) for name, about in headers.items()),
    ]


def parameter(place: str, name: str, schema: Schema, about: str | None = None) -> Schema:
    shape = {"name": name, "in": place, "required": place == "path", "schema": schema}
    return shape if about is None else {**shape, "description": about}


def described(text: str, schema: Schema) -> Schema:
    return {"description": text, "content": content(schema)}


def content(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
