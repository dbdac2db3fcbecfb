"""The buttons of the page: each opens a form that confirms the action; and the login.

The form is a page of its own; the page's script opens it in a dialog. Either way it is sent as an
ordinary POST, answered by a redirection to the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import (
    Conflict,
    InvalidJob,
    InvalidKey,
    InvalidRequest,
    NotConfigured,
)
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import Run
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control, repeating, shapes
from supervisor.operate.job_edits import JobEdits
from supervisor.web.access import Access, Visitor
from supervisor.web.editor import version_in
from supervisor.web.http import (
    TEMPLATES,
    Refused,
    Threads,
    actor_of,
    form_body,
    form_endpoint,
    job_url,
    place_of,
    root_of,
    run_url,
    signed_form,
    unless_skipped,
    validated,
    visitor_at,
)
from supervisor.web.record import Visits
from supervisor.web.sessions import COOKIE, TTL_SECONDS, Sessions

Fields = Mapping[str, str]


#: What is refused in the present state of a job or run.
STATES = (Conflict, InvalidJob, NotConfigured)


#: Does what a form asks for, to a job or run, in the name of the sender. Returns the address of the
#: result.
Act = Callable[[Ledger, str, Fields, Actor], str]


def action_routes(ledger: Ledger, edits: JobEdits, threads: Threads) -> list[Route]:
    actions: dict[str, Act] = {**ACTIONS, "remove": partial(remove, edits)}
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
    except (Refused, InvalidKey, InvalidRequest, *STATES) as error:
        status = 409 if isinstance(error, STATES) else 400
        status = error.status_code if isinstance(error, Refused) else status
        return form(ledger, verb, request, fields, str(error), status)
    return RedirectResponse(f"{root_of(request)}/{address}", 303)


def form(
    ledger: Ledger,
    verb: str,
    request: Request,
    fields: Fields,
    error: str = "",
    status: int = 200,
) -> Response:
    target = request.path_params["target"]
    is_about_run = verb in ("cancel", "retry")
    run = ledger.run(target) if is_about_run else None
    repeat, error = (
        repeat_or_why_not(ledger, run, error) if run and verb == "retry" else (None, error)
    )
    text = TEMPLATES.get_template("action.html").render(
        verb=verb,
        target=target,
        run=run,
        repeat=repeat,
        spec=None if is_about_run else ledger.spec(target),
        version=ledger.loaded([target]).origins[target].version if verb == "remove" else None,
        policies=list(OverlapPolicy),
        fields=fields,
        error=error,
        is_alone="part" not in request.query_params,
        **place_of(request),
    )
    return HTMLResponse(text, status)


def repeat_or_why_not(ledger: Ledger, run: Run, error: str) -> tuple[repeating.Repeat | None, str]:
    """What running it again would do; none if it cannot be, with the reason as the error."""
    try:
        return repeating.repeat_of(ledger, run), error
    except (InvalidKey, InvalidRequest, *STATES) as refusal:
        return None, error or str(refusal)


#: Fields of the form whose text is JSON.
AS_JSON = ("args", "kwargs", "params", "priority")


def trigger(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    given = {name: text.strip() for name, text in fields.items() if text.strip()}
    request: dict[str, Any] = {
        name: parsed(name, given[name]) if name in AS_JSON else given[name]
        for name in shapes.Trigger.model_fields
        if name in given
    }
    asked = validated(shapes.Trigger, json.dumps(request))
    run = control.trigger(ledger, job, asked.as_request(), asked.at, by=by, reason=asked.reason)
    return run_url(unless_skipped(run).id)


def parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"{name} is not JSON: {error}") from error


def pause(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    """The note is the reason."""
    request = {"note": fields.get("note", ""), "until": fields.get("until") or None}
    asked = validated(shapes.Pause, json.dumps(request))
    control.pause(ledger, job, asked.note, asked.until, by=by)
    return job_url(job)


def resume(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    reason = fields.get("reason", "")
    control.resume(ledger, job, catch_up="catch_up" in fields, by=by, reason=reason)
    return job_url(job)


def cancel(ledger: Ledger, run_id: str, fields: Fields, by: Actor) -> str:
    control.cancel(ledger, run_id, by=by, reason=fields.get("reason", ""))
    return run_url(run_id)


def retry(ledger: Ledger, run_id: str, fields: Fields, by: Actor) -> str:
    whole, reason = fields.get("from") == "first", fields.get("reason", "")
    found = repeating.retry(ledger, run_id, whole=whole, by=by, reason=reason)
    return run_url(unless_skipped(found.run).id if found.run else run_id)


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
            return shown(request, target, access, "That is not a token.", 403)
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
    text = TEMPLATES.get_template("login.html").render(
        next=own_path(target), error=error, access=access, **place_of(request)
    )
    return HTMLResponse(text, status)


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
