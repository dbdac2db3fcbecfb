"""The gate before all routes: lets a request through, or says what it lacks.

1. A Host that is not ours is turned away (DNS rebinding), and so is what a page of another origin
   sends, but for a link that is followed: it could not read the answer, yet have it made.
2. Health, the login form and the files of the page are for everybody.
3. Reading takes what `Access` says; a browser is sent to the login form, a program gets a 401.
4. The API acts for the bearer of the token, and for no cookie: no page of another site can make a
   browser send that header.
5. The page acts for a session, asked from our own origin, under the session's own address: a
   cookie alone, which other servers of this machine may be sent, is no session (sessions.py).
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
from supervisor.web.sessions import COOKIE, is_root, is_session, split_root

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
    """is_bearer: showed the token itself. root: of the visitor's session, if there is one."""

    is_bearer: bool
    root: str

    @property
    def has_session(self) -> bool:
        return bool(self.root)

    @property
    def is_known(self) -> bool:
        return self.is_bearer or self.has_session


class Gate:
    def __init__(self, app: ASGIApp, access: Access, clock: Callable[[], datetime]) -> None:
        self._app = app
        self._access = access
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        root, path = split_root(scope["path"])
        scope = {**scope, "path": path}
        request = Request(scope)
        visitor = visitor_of(request, root, self._access, self._clock())
        scope["state"] = scope.get("state", {}) | {"visitor": visitor, "budget": Budget()}
        turned_away = refusal(request, visitor, self._access)
        if root and not visitor.has_session and not turned_away and request.method in READING:
            turned_away = without_root(request)
        await (turned_away or self._app)(scope, receive, send)


def visitor_of(request: Request, root: str, access: Access, now: datetime) -> Visitor:
    """`root`: what the address begins with, which is a session's only with the cookie to it."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    is_own = root and access.token is not None and has_session(request, root, access.token, now)
    return Visitor(
        is_bearer=scheme.lower() == "bearer" and access.is_token(given.strip()),
        root=root if is_own else "",
    )


def has_session(request: Request, root: str, token: str, now: datetime) -> bool:
    cookie = request.cookies.get(COOKIE, "")
    return is_session(token, cookie, now) and is_root(token, cookie, root)


def without_root(request: Request) -> Response:
    """Of a session that has ended, or is another browser's: the page as everybody may see it."""
    return RedirectResponse(quoted(request), 303)


def quoted(request: Request) -> str:
    """The address as a path of this server, without what a session's begins with."""
    path, query = path_of(request), request.scope["query_string"].decode("latin-1")
    return quote("/" + path.lstrip("/"), safe="/@:+") + (f"?{query}" if query else "")


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
    if path != "/login" and not visitor.has_session:
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
