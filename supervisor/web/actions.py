"""The buttons of the page: each opens a form that confirms the action; and the login.

The form is a page of its own; the page's script opens it in a dialog. Either way it is sent as an
ordinary POST, answered by a redirection to the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import (
    Conflict,
    InvalidJob,
    InvalidKey,
    InvalidRequest,
    NotConfigured,
)
from supervisor.job.policies import OverlapPolicy
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.lists.page import BUTTONS
from supervisor.operate import control, repeating, shapes
from supervisor.operate.job_edits import JobEdits
from supervisor.web.access import Access, Visitor
from supervisor.web.budget import Threads
from supervisor.web.buttons import Act, Fields
from supervisor.web.editor import version_in
from supervisor.web.http import (
    RequestRefused,
    actor_of,
    form_body,
    form_endpoint,
    signed_form,
    unless_skipped,
    validated,
    visitor_at,
)
from supervisor.web.record import Visits
from supervisor.web.sessions import COOKIE, TTL_SECONDS, Sessions
from supervisor.web.templating import job_url, page, root_of, run_url

#: What is refused in the present state of a job or run.
STATES = (Conflict, InvalidJob, NotConfigured)


def action_routes(ledger: Ledger, edits: JobEdits, threads: Threads) -> list[Route]:
    of_features = {button.verb: button.act for button in BUTTONS}
    actions: dict[str, Act] = {**ACTIONS, **of_features, "remove": partial(remove, edits)}
    return [
        Route(f"/actions/{verb}/{{target:path}}", form_endpoint(threads, answer), methods=[method])
        for verb, act in actions.items()
        for method, answer in (
            ("GET", partial(form, ledger, verb)),
            ("POST", partial(result, ledger, verb, act)),
        )
    ]


def result(ledger: Ledger, verb: str, act: Act, request: Request, fields: Fields) -> Response:
    try:
        address = act(ledger, request.path_params["target"], fields, actor_of(request))
    except (RequestRefused, InvalidKey, InvalidRequest, *STATES) as error:
        status = 409 if isinstance(error, STATES) else 400
        status = error.status_code if isinstance(error, RequestRefused) else status
        return form(ledger, verb, request, fields, str(error), status)
    return RedirectResponse(f"{root_of(request)}/{address}", 303)


def form(
    ledger: Ledger, verb: str, request: Request, fields: Fields, error: str = "", status: int = 200
) -> Response:
    target = request.path_params["target"]
    about: dict[str, Any] = {"back": "./", "repeat": None, "error": error, "asks": ""}
    about |= {"target": target, "what": target, "words": "", "submit": "", "reason_is": None}
    of_feature = next((button.form for button in BUTTONS if button.verb == verb), None)
    if of_feature:
        about |= of_feature(ledger, target)
    elif verb in ("cancel", "retry"):
        about |= {"run": ledger.run(target), "back": run_url(target)}
    else:
        about |= {"spec": ledger.spec(target), "back": job_url(target)}
    if verb == "retry":
        try:
            about["repeat"] = repeating.repeat_of(ledger, about["run"])
        except (InvalidKey, InvalidRequest, *STATES) as refusal:
            about["error"] = error or str(refusal)
    if verb == "remove":
        about["version"] = ledger.loaded([target]).origins[target].version
    return page(
        request,
        "action.html",
        status,
        verb=verb,
        policies=list(OverlapPolicy),
        fields=fields,
        **about,
    )


#: Fields of the form whose text is JSON.
AS_JSON = ("args", "kwargs", "params", "priority")


def trigger(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    given = {name: text.strip() for name, text in fields.items() if text.strip()}
    request: dict[str, Any] = {
        name: parsed(name, given[name]) if name in AS_JSON else given[name]
        for name in shapes.Trigger.model_fields
        if name in given
    }
    body = validated(shapes.Trigger, json.dumps(request))
    run = control.trigger(ledger, job, body.as_request(), body.at, by=by, reason=body.reason)
    return run_url(unless_skipped(run).id)


def parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"{name} is not JSON: {error}") from error


def pause(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    request = {"reason": fields.get("reason", ""), "until": fields.get("until") or None}
    body = validated(shapes.Pause, json.dumps(request))
    control.pause(ledger, job, body.until, by=by, reason=body.reason)
    return job_url(job)


def resume(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    if not ledger.paused([job]):
        raise RequestRefused(409, "it is not paused")
    reason = fields.get("reason", "")
    control.resume(ledger, job, catch_up="catch_up" in fields, by=by, reason=reason)
    return job_url(job)


def cancel(ledger: Ledger, run_id: str, fields: Fields, by: Actor) -> str:
    control.cancel(ledger, run_id, by=by, reason=fields.get("reason", ""))
    return run_url(run_id)


def retry(ledger: Ledger, run_id: str, fields: Fields, by: Actor) -> str:
    whole, reason = fields.get("from") == "first", fields.get("reason", "")
    run = repeating.retry(ledger, run_id, whole=whole, by=by, reason=reason).run
    return run_url(unless_skipped(run).id if run else run_id)


def remove(edits: JobEdits, _: Ledger, job: str, fields: Fields, by: Actor) -> str:
    """Removes the version that the form was made from, and no later one."""
    edits.remove(job, version_in(fields), by, fields.get("reason", ""))
    return ""


ACTIONS: Mapping[str, Act] = {
    "trigger": trigger,
    "pause": pause,
    "resume": resume,
    "cancel": cancel,
    "retry": retry,
}

# The login form: takes the token, gives a session.


def login_routes(access: Access, sessions: Sessions, visits: Visits) -> list[Route]:
    threads = Threads()

    async def form(request: Request) -> Response:
        return shown(request, request.query_params.get("next", "/"), access)

    async def login(request: Request) -> Response:
        fields = await form_body(request)
        target = own_path(fields.get("next", "/"))
        token = access.token_sent(fields.get("token", ""))
        if token is None:
            await run_in_threadpool(visits.enter_refused, visitor_at(request), "login", "page")
            return shown(request, target, access, "This token is not valid.", 403)
        if not visits.may_log_in(token.name):
            return shown(request, target, access, "Too many logins: try again in a minute.", 429)
        cookie = await threads.run(request, sessions.begin, token)
        await run_in_threadpool(visits.enter, visitor_at(request, token.name), "login")
        response = RedirectResponse(access.prefix + target, 303)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=TTL_SECONDS,
            path=f"{access.prefix}/",
            httponly=True,
            samesite="strict",
            secure=is_encrypted(request),
        )
        return response

    async def logout(request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        await signed_form(request)
        if visitor.session:
            await threads.run(request, sessions.end, visitor.session)
            await run_in_threadpool(visits.enter, actor_of(request), "logout")
        response = RedirectResponse(f"{access.prefix}/", 303)
        response.delete_cookie(COOKIE, f"{access.prefix}/", httponly=True, samesite="strict")
        return response

    return [
        Route("/login", form),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


def shown(
    request: Request, target: str, access: Access, error: str = "", status: int = 200
) -> Response:
    return page(request, "login.html", status, next=own_path(target), error=error, access=access)


def is_encrypted(request: Request) -> bool:
    """By TLS up to here, or up to a proxy that FORWARDED_ALLOW_IPS names, or as the browser says in
    Origin.
    """
    origin = request.headers.get("origin", "")
    return request.scope["scheme"] == "https" or origin.startswith("https://")


def own_path(target: str) -> str:
    """A path of this server, else ``/``; browsers read ``//host`` and ``/\\host`` as another's."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_ours and target.isprintable() else "/"
