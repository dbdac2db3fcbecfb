"""The gate before all routes: lets a request through, or says what it lacks.

1. A Host that is not ours is turned away (DNS rebinding), and so is what a page of another origin
   sends, but for a link that is followed: it could not read the answer, yet have it made.
2. Health, the login form and the files of the page are for everybody.
3. Reading takes what `Access` says; a browser is sent to the login form, a program gets a 401.
4. The API acts for the bearer of the token, and for no cookie: no page of another site can make a
   browser send that header.
5. The page acts for a session, asked from our own origin, with the token of its forms. The form is
   read by the action itself: it calls `is_our_form`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from supervisor.web.access import Access
from supervisor.web.budget import Budget
from supervisor.web.problems import Problem, problem_response
from supervisor.web.sessions import COOKIE, form_token, is_same, is_session

FOR_EVERYBODY = ("/healthz", "/readyz", "/login", "/static/")

#: Who asks for these is a program: a redirection to a form is of no use to it.
FOR_PROGRAMS = ("/api/", "/metrics", "/events")

READING = ("GET", "HEAD")

NO_ACTIONS = Problem(403, "this server only reads: start it with SUPERVISOR_TOKEN to act")
#: Of the path and the query, in bytes.
LONGEST_ADDRESS = 8 * 1024

NOT_OUR_HOST = Problem(421, "this server answers to loopback names only")
TOO_LONG = Problem(414, f"the address has more than {LONGEST_ADDRESS:,} bytes")
NO_TOKEN = Problem(401, "show the token: Authorization: Bearer ...")
NOT_LOGGED_IN = Problem(401, "log in first")
NOT_OUR_PAGE = Problem(403, "the request comes from a page of another site")


@dataclass(frozen=True, slots=True)
class Visitor:
    """is_bearer: showed the token itself. form_token: of the visitor's session, if there is one."""

    is_bearer: bool
    form_token: str | None

    @property
    def is_known(self) -> bool:
        return self.is_bearer or self.form_token is not None

    def is_our_form(self, given: str) -> bool:
        return self.form_token is not None and is_same(given, self.form_token)


class Gate:
    def __init__(self, app: ASGIApp, access: Access, clock: Callable[[], datetime]) -> None:
        self._app = app
        self._access = access
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        visitor = visitor_of(request, self._access, self._clock())
        scope.setdefault("state", {}).update(visitor=visitor, budget=Budget())
        turned_away = refusal(request, visitor, self._access)
        await (turned_away or self._app)(scope, receive, send)


def visitor_of(request: Request, access: Access, now: datetime) -> Visitor:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(COOKIE, "")
    has_session = access.token is not None and is_session(access.token, cookie, now)
    return Visitor(
        is_bearer=scheme.lower() == "bearer" and access.is_token(given.strip()),
        form_token=form_token(access.token, cookie) if access.token and has_session else None,
    )


def refusal(request: Request, visitor: Visitor, access: Access) -> Response | None:
    if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > LONGEST_ADDRESS:
        return problem_response(request, TOO_LONG)
    if not access.answers_to(request.headers.get("host", "")):
        return problem_response(request, NOT_OUR_HOST)
    if is_of_another_page(request):
        return problem_response(request, NOT_OUR_PAGE)
    if request.method in READING:
        return refusal_to_read(request, visitor, access)
    problem = refusal_to_act(request, visitor, access)
    return problem_response(request, problem) if problem else None


def refusal_to_read(request: Request, visitor: Visitor, access: Access) -> Response | None:
    path = path_of(request)
    if access.is_local or visitor.is_known or path.startswith(FOR_EVERYBODY):
        return None
    if path.startswith(FOR_PROGRAMS):
        return problem_response(request, NO_TOKEN)
    query = request.scope["query_string"].decode("latin-1")
    wanted = quote(path + (f"?{query}" if query else ""), safe="/")
    return RedirectResponse(f"/login?next={wanted}", 303)


def refusal_to_act(request: Request, visitor: Visitor, access: Access) -> Problem | None:
    path = path_of(request)
    if not path.startswith(("/api/", "/actions/", "/login", "/logout")):
        return None if access.is_local or visitor.is_known else NO_TOKEN
    if not access.has_actions:
        return NO_ACTIONS
    if path.startswith("/api/"):
        return None if visitor.is_bearer else NO_TOKEN
    if not comes_from_us(request):
        return NOT_OUR_PAGE
    if path != "/login" and visitor.form_token is None:
        return NOT_LOGGED_IN
    return None


def is_of_another_page(request: Request) -> bool:
    """By what a browser says of itself; a link that is followed shows our page in its place."""
    headers = request.headers
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_followed = headers.get("sec-fetch-mode") == "navigate" and request.method in READING
    return not (is_followed and headers.get("sec-fetch-dest") == "document")


def path_of(request: Request) -> str:
    """As the routes see it; that of `request.url` is read after a Host header that may have any."""
    return str(request.scope["path"])


def comes_from_us(request: Request) -> bool:
    """By what the browser says of the page that asks; a request that says nothing is no form's."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    scheme, _, host = request.headers.get("origin", "").partition("://")
    return scheme in ("http", "https") and host == request.headers.get("host")
