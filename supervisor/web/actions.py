"""The buttons of the page: a form that asks once more, and what it does when it is sent.

The form is a page of its own; with the page's script it opens in a dialog. Either way sending it
is an ordinary POST, answered by a redirection to what came of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor import control
from supervisor.errors import InvalidKey, InvalidRequest, RunEnded
from supervisor.job.overlap import OverlapPolicy
from supervisor.ledger.runs import Ledger
from supervisor.web import requests
from supervisor.web.bodies import form_body, validated
from supervisor.web.budget import Threads
from supervisor.web.gate import quoted
from supervisor.web.problems import Refused, unless_skipped
from supervisor.web.rendering import TEMPLATES, job_url, place_of, run_url

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """verb: also the name of its form. do: gives where to go then."""

    verb: str
    do: Callable[[Ledger, str, Fields], str]


def action_routes(ledger: Ledger, threads: Threads) -> list[Route]:
    return [
        Route(f"/actions/{action.verb}/{{target:path}}", endpoint, methods=[method])
        for action in ACTIONS
        for method, endpoint in (
            ("GET", asking(ledger, action, threads)),
            ("POST", doing(ledger, action, threads)),
        )
    ]


def asking(ledger: Ledger, action: Action, threads: Threads) -> Callable[[Request], Any]:
    async def ask(request: Request) -> Response:
        if not request.state.visitor.has_session:
            return RedirectResponse(f"/login?next={quoted(request)}", 303)
        return await threads.run(request, form, ledger, action, request)

    return ask


def doing(ledger: Ledger, action: Action, threads: Threads) -> Callable[[Request], Any]:
    async def do(request: Request) -> Response:
        fields = await form_body(request)
        return await threads.run(request, done, request, fields)

    def done(request: Request, fields: Fields) -> Response:
        try:
            target = action.do(ledger, request.path_params["target"], fields)
        except Refused as error:
            return form(ledger, action, request, fields, str(error), error.problem.status)
        except (InvalidKey, InvalidRequest) as error:
            return form(ledger, action, request, fields, str(error), 400)
        except RunEnded as error:
            return form(ledger, action, request, fields, str(error), 409)
        return RedirectResponse(f"{request.state.visitor.root}/{target}", 303)

    return do


def form(
    ledger: Ledger,
    action: Action,
    request: Request,
    fields: Fields | None = None,
    error: str = "",
    status: int = 200,
) -> Response:
    target = request.path_params["target"]
    is_about_run = action.verb == "cancel"
    text = TEMPLATES.get_template("action.html").render(
        verb=action.verb,
        target=target,
        run=ledger.run(target) if is_about_run else None,
        spec=None if is_about_run else ledger.spec(target),
        policies=list(OverlapPolicy),
        fields=fields or {},
        error=error,
        is_alone="part" not in request.query_params,
        **place_of(request),
    )
    return HTMLResponse(text, status)


def trigger(ledger: Ledger, job: str, fields: Fields) -> str:
    said: dict[str, Any] = {
        name: parsed(name, fields[name])
        for name in ("args", "kwargs", "params")
        if fields.get(name, "").strip()
    }
    said |= {
        n: fields[n].strip() for n in ("overlap", "key", "max_wait") if fields.get(n, "").strip()
    }
    asked = validated(requests.Trigger, json.dumps(said))
    run = control.trigger(ledger, job, asked.as_request())
    return run_url(unless_skipped(run).id)


def parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"{name} is not JSON: {error}") from error


def pause(ledger: Ledger, job: str, fields: Fields) -> str:
    said = {"note": fields.get("note", ""), "until": fields.get("until") or None}
    asked = validated(requests.Pause, json.dumps(said))
    control.pause(ledger, job, asked.note, asked.until)
    return job_url(job)


def resume(ledger: Ledger, job: str, fields: Fields) -> str:
    control.resume(ledger, job, catch_up="catch_up" in fields)
    return job_url(job)


def cancel(ledger: Ledger, run_id: str, _: Fields) -> str:
    control.cancel(ledger, run_id)
    return run_url(run_id)


ACTIONS = (
    Action("trigger", trigger),
    Action("pause", pause),
    Action("resume", resume),
    Action("cancel", cancel),
)
