"""Who may do what: the policy of a server, sessions of browsers, and the check of every request.

1. Bound to a loopback address, everybody on this machine may read. A page of any site could make a
   browser here send requests under a name of its own, so only loopback names are answered to.
2. Bound to any other address, or behind a proxy, reading takes the token, under whatever name.
3. Acting takes the token everywhere: without one there are no actions, and no server of rule 2.

A program sends the token itself (``Authorization: Bearer``), a browser the cookie of a session.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.errors import NotConfigured
from supervisor.web.budget import Budget
from supervisor.web.http import Problem, problem_response
from supervisor.web.roles import Role

SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Access:
    """token: the secret, if there is one. is_local: only this machine reaches the server."""

    token: str | None = None
    is_local: bool = True

    @classmethod
    def of(cls, host: str, token: str | None, *, is_proxied: bool = False) -> Access:
        """Raises NotConfigured where the address asks for a token that is not there, or is weak."""
        is_local = is_loopback(host) and not is_proxied
        if token is None and not is_local:
            raise NotConfigured(
                f"{host} {'behind a proxy ' if is_proxied else ''}is for others than this machine: "
                "set SUPERVISOR_TOKEN to a secret, or "
                + ("leave --proxied out" if is_proxied else "listen on 127.0.0.1")
            )
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
            raise NotConfigured(
                f"SUPERVISOR_TOKEN is no secret: it takes {SHORTEST_TOKEN} ASCII characters or more"
            )
        return cls(token, is_local)

    @property
    def has_actions(self) -> bool:
        return self.token is not None

    def answers_to(self, host: str) -> bool:
        """`host`: the Host header of a request."""
        return not self.is_local or is_loopback(without_port(host))

    def is_token(self, given: str) -> bool:
        if self.token is None:
            return False
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def without_port(host: str) -> str:
    """``127.0.0.1:9809`` and ``[::1]:9809`` without the port and the brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


#: Of every answer: nothing inline, nothing of another host, in no other page's frame.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


# Sessions of browsers: a cookie, and a key in the address of all their pages. Nothing is stored.
#
# 1. A browser sends a cookie to every port of a host, so other servers on the machine could read
#    it. So a session takes two secrets that go different ways: the cookie, and the key in
#    the address, ``/s/<key>/...``. Neither allows anything alone.
# 2. The cookie's path is that address: browsers send it to no other one, on whatever port.
# 3. The cookie is ``<end>.<nonce>.<signature>``, signed with an HMAC under the server's token; the
#    key is another HMAC, of the cookie. So neither contains the token, and another token ends all
#    sessions.


COOKIE = "supervisor_session"

#: The addresses of all sessions begin with this.
ROOTS = "/s/"

SESSION_TTL = timedelta(hours=12)


def new_session(token: str, now: datetime) -> str:
    end = round((now + SESSION_TTL).timestamp())
    facts = f"{end}.{secrets.token_urlsafe(12)}"
    return f"{facts}.{signature(token, 'session', facts)}"


def is_session(token: str, cookie: str, now: datetime) -> bool:
    facts, _, signed = cookie.rpartition(".")
    end = facts.partition(".")[0]
    if not is_same(signed, signature(token, "session", facts)):
        return False
    return now.timestamp() < int(end)


def root_of(token: str, cookie: str) -> str:
    """What the addresses of a session's pages begin with."""
    return f"{ROOTS}{signature(token, 'key', cookie)[:32]}"


def split_root(path: str) -> tuple[str, str]:
    """The root of a session, of any browser, and the path below it."""
    if not path.startswith(ROOTS):
        return "", path
    key, _, rest = path.removeprefix(ROOTS).partition("/")
    return f"{ROOTS}{key}", f"/{rest}"


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def signature(token: str, purpose: str, text: str) -> str:
    message = f"{purpose}:{text}".encode(errors="replace")
    return hmac.new(token.encode(), message, "sha256").hexdigest()


# Every request is checked before the routes.
#
# 1. A Host that is not ours is refused (DNS rebinding), and so is what the page of another origin
#    sends, except a link that is followed: that page cannot read the answer, but could cause it.
# 2. Health, the login form and the files of the page are for everybody.
# 3. Reading takes what `Access` says; a browser is sent to the login form, a program gets a 401.
# 4. The API acts for the bearer of the token, and for no cookie: no page of another site can make a
#    browser send that header.
# 5. The page acts for a session, requested from our own origin, below the session's own root: the
#    cookie alone, which other servers on this machine may receive, is no session.


FOR_EVERYBODY = ("/healthz", "/readyz", "/login", "/static/")

#: Programs ask for these: a redirection to a form is of no use to them.
FOR_PROGRAMS = ("/api/", "/metrics", "/events")

READING = ("GET", "HEAD")

#: Of the path and the query, in bytes.
LONGEST_ADDRESS = 8 * 1024

NO_ACTIONS = Problem(
    403, "this server is read-only: start it with SUPERVISOR_TOKEN to allow actions"
)
NOT_OUR_HOST = Problem(421, "this server answers to loopback names only")
TOO_LONG = Problem(414, f"the address has more than {LONGEST_ADDRESS:,} bytes")
NO_TOKEN = Problem(401, "send the token: Authorization: Bearer ...")
NOT_LOGGED_IN = Problem(401, "log in first")
NOT_OUR_PAGE = Problem(403, "the request comes from a page of another site")


@dataclass(frozen=True, slots=True)
class Visitor:
    """is_bearer: sent the token itself. root: of the visitor's session, empty without one.

    name: of whoever acts, empty for one who may only read. role: None for one who may not even.
    """

    is_bearer: bool
    root: str
    name: str = ""
    role: Role | None = None

    @property
    def has_session(self) -> bool:
        return bool(self.root)

    @property
    def is_known(self) -> bool:
        return self.is_bearer or self.has_session


class AccessCheck:
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
        answer = refusal(request, visitor, self._access)
        if root and not visitor.has_session and not answer and request.method in READING:
            # A session that has ended, or another browser's: the page as everybody may see it.
            answer = RedirectResponse(address_of(request), 303)
        await (answer or self._app)(scope, receive, send)


def visitor_of(request: Request, root: str, access: Access, now: datetime) -> Visitor:
    """`root`: what the address begins with; it is a session's only with the cookie to it."""
    token = access.token
    anonymous = Visitor(is_bearer=False, root="", role=Role.VIEWER if access.is_local else None)
    if token is None:
        return anonymous
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(COOKIE, "")
    has_session = is_session(token, cookie, now) and is_same(root, root_of(token, cookie))
    is_bearer = scheme.lower() == "bearer" and is_same(given.strip(), token)
    if not is_bearer and not has_session:
        return anonymous
    return Visitor(is_bearer, root if has_session else "", "token", Role.EDITOR)


def address_of(request: Request) -> str:
    """The address as a path of this server, without the root of a session."""
    path, query = path_of(request), request.scope["query_string"].decode("latin-1")
    return quote("/" + path.lstrip("/"), safe="/@:+") + (f"?{query}" if query else "")


def to_login(request: Request) -> Response:
    """To the login form, and from there back."""
    return RedirectResponse(f"/login?next={quote(address_of(request), safe='/')}", 303)


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
    return to_login(request)


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
    """By the headers that browsers add; a link that is followed shows our page in its place."""
    headers = request.headers
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_followed = headers.get("sec-fetch-mode") == "navigate" and request.method in READING
    return not (is_followed and headers.get("sec-fetch-dest") == "document")


def path_of(request: Request) -> str:
    """As the routes see it; `request.url` depends on the Host header."""
    return str(request.scope["path"])


def comes_from_us(request: Request) -> bool:
    """By the headers that browsers add; a request without them is not from a form."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    scheme, _, host = request.headers.get("origin", "").partition("://")
    return scheme in ("http", "https") and host == request.headers.get("host")
