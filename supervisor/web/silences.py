"""Silences of notices on the page: the forms that begin and end them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import Conflict, InvalidRequest, NotFound
from supervisor.features.notices.silences import Silence, SilenceStore
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control, shapes
from supervisor.web.http import (
    TEMPLATES,
    Refused,
    Threads,
    actor_of,
    form_endpoint,
    job_url,
    place_of,
    root_of,
    validated,
)

Fields = Mapping[str, str]

#: What the form proposes.
DURATION = "1h"


def silence_routes(ledger: Ledger, threads: Threads) -> list[Route]:
    answers = (
        ("silence", "GET", partial(form, ledger)),
        ("silence", "POST", partial(begin, ledger)),
        ("unsilence", "GET", partial(form_of_end, ledger)),
        ("unsilence", "POST", partial(end, ledger)),
    )
    return [
        Route(f"/actions/{verb}/{{target:path}}", form_endpoint(threads, answer), methods=[method])
        for verb, method, answer in answers
    ]


def form(
    ledger: Ledger, request: Request, fields: Fields, error: str = "", status: int = 200
) -> Response:
    """Of the job that the address names; without one, of a label or of all."""
    job = request.path_params["target"]
    return shown(
        request,
        status,
        job=job,
        zone=ledger.spec(job).timezone if job else "UTC",
        fields={"duration": DURATION, **fields},
        error=error,
        ending=None,
    )


def begin(ledger: Ledger, request: Request, fields: Fields) -> Response:
    job = request.path_params["target"]
    try:
        asked = validated(shapes.NewSilence, json.dumps(request_of(job, fields)))
        control.silence(
            ledger,
            asked.job,
            asked.label,
            until=asked.until,
            duration=asked.duration,
            by=actor_of(request),
            reason=asked.reason,
        )
    except (Refused, InvalidRequest, Conflict) as error:
        status = 409 if isinstance(error, Conflict) else 400
        return form(ledger, request, fields, str(error), status)
    return RedirectResponse(f"{root_of(request)}/{job_url(job) if job else ''}", 303)


def request_of(job: str, fields: Fields) -> dict[str, Any]:
    """An end that is named counts before the proposed duration."""
    texts = {name: fields.get(name, "").strip() for name in shapes.NewSilence.model_fields}
    given = {name: text for name, text in texts.items() if text}
    if "until" in given:
        given.pop("duration", None)
    return given | ({"job": job} if job else {})


def form_of_end(ledger: Ledger, request: Request, fields: Fields) -> Response:
    """Raises NotFound."""
    target = request.path_params["target"]
    for each in SilenceStore(ledger).in_force(ledger.now()):
        if target in (each.id, each.target):
            return shown(request, 200, job=each.job, fields=fields, error="", ending=each)
    raise NotFound("this silence has ended")


def end(ledger: Ledger, request: Request, fields: Fields) -> Response:
    target, reason = request.path_params["target"], fields.get("reason", "")
    [ended, *_] = control.unsilence(ledger, target, by=actor_of(request), reason=reason)
    return RedirectResponse(f"{root_of(request)}/{job_url(ended.job) if ended.job else ''}", 303)


def shown(request: Request, status: int, *, ending: Silence | None, **about: Any) -> Response:
    text = TEMPLATES.get_template("silence.html").render(
        ending=ending, is_alone="part" not in request.query_params, **about, **place_of(request)
    )
    return HTMLResponse(text, status)
