"""Bodies of requests: read up to a bound, as JSON or as a form."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from supervisor.web.budget import OutOfTime
from supervisor.web.problems import Refused

#: Arguments of a run, by hand: what is larger belongs where the job can fetch it.
MOST_BYTES = 64 * 1024

MOST_FIELDS = 50

Body = TypeVar("Body", bound=BaseModel)


async def bounded_body(request: Request) -> bytes:
    """Raises OutOfTime of one that is sent too slowly."""
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
    text = await bounded_body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if text and kind != "application/json":
        raise Refused(415, "the body must be application/json")
    return validated(model, text or b"{}")


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
