"""Who may do what: the policy of a server, and the check of every request.

1. Bound to a loopback address, every user of this machine may read, unless the access file says
   otherwise. A page of another site could make a browser here send requests under a host name of
   its own, so requests for other host names than loopback ones are refused.
2. Bound to any other address, or behind a proxy, reading takes a token or a name from the proxy.
3. Acting always takes one of them: with neither configured there are no actions, and a server of
   rule 2 does not start.
4. A visitor has a role; `NEEDS` (needs.py) says which role each route takes.

A program sends a token itself (``Authorization: Bearer``), a browser the cookie of a session, and a
proxy that authenticates its visitors sends their names, together with a secret of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import quote

from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from supervisor.errors import NotConfigured
from supervisor.web import clock
from supervisor.web.access_file import (
    NO_FILE,
    AccessFile,
    Policy,
    Role,
    Token,
    digest,
    is_same,
)
from supervisor.web.budget import Budget
from supervisor.web.http import RequestRefused, actor_of, ledger_unavailable, problem_response
from supervisor.web.needs import NEEDS, verb_of
from supervisor.web.record import Visits
from supervisor.web.sessions import COOKIE, FormToken, Session, Sessions
from supervisor.web.templating import path_of, root_of

SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Access:
    token: str | None = None
    """The secret of SUPERVISOR_TOKEN, an editor of all jobs, if there is one."""

    is_local: bool = True
    """Only this machine reaches the server."""

    file: AccessFile | None = None

    prefix: str = ""
    """Of all addresses, where a proxy serves them below a path: ``/supervisor``, or empty."""

    @classmethod
    def of(
        cls,
        host: str,
        token: str | None,
        *,
        is_proxied: bool = False,
        file: AccessFile | None = None,
        prefix: str = "",
    ) -> Access:
        """Raises NotConfigured where the address requires a token, and it is missing or weak."""
        made = cls(token, is_loopback(host) and not is_proxied, file, checked_prefix(prefix))
        if not made.has_actions and not made.is_local:
            raise NotConfigured(
                f"{host} {'behind a proxy ' if is_proxied else ''}is for others than this machine: "
                "set SUPERVISOR_TOKEN to a secret, or "
                + ("leave --proxied out" if is_proxied else "listen on 127.0.0.1")
            )
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
            raise NotConfigured(
                f"SUPERVISOR_TOKEN is no secret: it takes {SHORTEST_TOKEN} ASCII characters or more"
            )
        return made

    @property
    def policy(self) -> Policy:
        return self.file.policy if self.file else NO_FILE

    @property
    def tokens(self) -> tuple[Token, ...]:
        """SUPERVISOR_TOKEN, if there is one, and those of the file."""
        if self.token is None:
            return self.policy.tokens
        hashed = f"sha256:{digest(self.token)}"
        return (Token(role=Role.EDITOR, name=OWN_NAME, hash=hashed), *self.policy.tokens)

    @property
    def has_actions(self) -> bool:
        return bool(self.tokens) or self.policy.proxy is not None

    @property
    def anonymous(self) -> Role | None:
        """The role of a visitor without a token or a name."""
        return Role.VIEWER if self.is_local and self.policy.anonymous == "viewer" else None

    def answers_to(self, host: str) -> bool:
        """`host`: the Host header of a request."""
        return not self.is_local or is_loopback(host_in(host))

    def token_sent(self, given: str) -> Token | None:
        """The token that was sent. Compares it with all, so that the time taken reveals nothing."""
        hashed = f"sha256:{digest(given)}"
        same = [token for token in self.tokens if is_same(hashed, token.hash)]
        return same[0] if same else None

    def named(self, name: str) -> Token | None:
        """The token of that name; None once the file no longer has it."""
        return next((token for token in self.tokens if token.name == name), None)


#: The name of SUPERVISOR_TOKEN, which no token in the file can have.
OWN_NAME = "token"


def checked_prefix(text: str) -> str:
    """Raises NotConfigured."""
    prefix = text.rstrip("/")
    if prefix and not PREFIX.fullmatch(prefix):
        raise NotConfigured(f"SUPERVISOR_ROOT_PATH is a path such as /supervisor, not {text!r}")
    return prefix


PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]+)+")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_in(header: str) -> str:
    """The host of a Host header, without its port; empty if the header is not a valid one."""
    host = HOST.fullmatch(header)
    return (host["v6"] or host["name"]) if host else ""


HOST = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9.-]{1,253}))(?::\d{1,5})?", re.ASCII
)


# Every request is checked before the routes.
#
# 1. A Host that is not ours is refused (DNS rebinding), and so is what the page of another origin
#    sends, except a link that is followed: that page cannot read the answer, but could cause it.
# 2. Health, the login form and the files of the page take no role.
# 3. Reading takes a role; a browser is sent to the login form, a program gets a 401.
# 4. The API acts for the bearer of a token, and for nothing that a browser adds by itself: no page
#    of another site can make it send that header.
# 5. The page acts for a session or for a user that the proxy names, requested from our own origin,
#    by a form with a token for that visitor (`http.form_endpoint`).
# 6. Then the route checks the role (`RoleCheck`).


#: The same for every visitor: the session is not looked up.
ALIKE = ("/healthz", "/readyz", "/static/")

FOR_EVERYBODY = (*ALIKE, "/login")

#: Programs ask for these: a redirection to a form is of no use to them.
FOR_PROGRAMS = ("/api/", "/metrics")

READING = ("GET", "HEAD")

#: The longest path with its query, in bytes.
LONGEST_ADDRESS = 8 * 1024

NO_ACTIONS = RequestRefused(
    403, "this server is read-only: start it with SUPERVISOR_TOKEN to allow actions"
)
NOT_OUR_HOST = RequestRefused(421, "this server answers to loopback names only")
TOO_LONG = RequestRefused(414, f"the address has more than {LONGEST_ADDRESS:,} bytes")
TWO_LENGTHS = RequestRefused(400, "the request has both Content-Length and Transfer-Encoding")
NO_TOKEN = RequestRefused(401, "send the token: Authorization: Bearer ...")
NOT_LOGGED_IN = RequestRefused(401, "log in first")
NOT_OUR_PAGE = RequestRefused(403, "the request comes from a page of another site")


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str = ""
    """That of the token or, from the proxy, of the person; empty without either."""

    role: Role | None = None
    """None without permission to read."""

    session: Session | None = None

    form_token: FormToken | None = None
    """Of those who act by forms."""

    is_bearer: bool = False

    is_proxied: bool = False
    """The proxy authenticated the visitor."""

    @property
    def is_person(self) -> bool:
        """Whether the visitor acts by the page's buttons."""
        return self.session is not None or self.is_proxied

    def may(self, role: Role) -> bool:
        return self.role is not None and self.role.includes(role)


#: The number of threads that look up sessions; answers have threads of their own.
LOOKUPS = 4


class AccessCheck:
    def __init__(self, app: ASGIApp, access: Access, sessions: Sessions) -> None:
        self._app = app
        self._access = access
        self._sessions = sessions
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="sessions")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = with_root(scope, self._access.prefix)
        request, budget = Request(scope), Budget()
        clock.use(request.cookies.get(clock.COOKIE))
        anonymous = Visitor(role=self._access.anonymous)
        scope["state"] = scope.get("state", {}) | {"visitor": anonymous, "budget": budget}
        try:
            visitor = await self._visitor(request, budget.seconds_left) or anonymous
        except (RedisError, OSError, TimeoutError) as error:
            answer: Response | None = ledger_unavailable(request, error)
        else:
            scope["state"]["visitor"] = visitor
            answer = refusal(request, visitor, self._access)
        await (answer or self._app)(scope, receive, send)

    async def _visitor(self, request: Request, seconds: float) -> Visitor | None:
        """The visitor, known by a token, else by a session, else by a name from the proxy.

        The event loop does not wait for the ledger, which keeps the key of sessions and forms.
        """
        access, cookie = self._access, request.cookies.get(COOKIE, "")
        if path_of(request).startswith(ALIKE):
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        bearer = access.token_sent(given.strip()) if scheme.lower() == "bearer" else None
        if bearer:
            return Visitor(bearer.name, bearer.role, is_bearer=True)
        person = person_of(request, access)
        if not (person or (cookie and access.tokens)):
            return None
        lookup = self._threads.submit(self._of_session_or_proxy, cookie, person)
        return await asyncio.wait_for(asyncio.wrap_future(lookup), seconds)

    def _of_session_or_proxy(self, cookie: str, person: Visitor | None) -> Visitor | None:
        """The visitor with this cookie, or else the person whom the proxy names."""
        access, key = self._access, self._sessions.key()
        session = self._sessions.read(key, cookie, access.named) if cookie else None
        # The file may have changed since the name was found in it.
        if session and (token := access.named(session.name)):
            return Visitor(token.name, token.role, session, FormToken(key, f"session {session.id}"))
        return person and replace(person, form_token=FormToken(key, f"person {person.name}"))


def with_root(scope: Scope, prefix: str) -> Scope:
    """The request as ASGI has it below a path: a proxy may have taken the prefix away, or not."""
    path, raw = scope["path"], scope["raw_path"].decode("latin-1")
    if path != prefix and not path.startswith(f"{prefix}/"):
        path, raw = prefix + path, prefix + raw
    return {**scope, "path": path, "raw_path": raw.encode("latin-1"), "root_path": prefix}


def person_of(request: Request, access: Access) -> Visitor | None:
    """The person whom the proxy names, if the request is the proxy's."""
    proxy = access.policy.proxy
    if proxy is None or not proxy.sent(request.headers):
        return None
    if request.headers.get("x-forwarded-proto") in ("http", "https"):
        request.scope["scheme"] = request.headers["x-forwarded-proto"]
    user = proxy.user(request.headers)
    return Visitor(user, proxy.role(request.headers), is_proxied=True) if user else None


def to_login(request: Request) -> Response:
    """Redirects to the login form, which leads back here."""
    path, query = path_of(request), request.scope["query_string"].decode("latin-1")
    here = quote(path, safe="/@:+") + (f"?{query}" if query else "")
    return RedirectResponse(f"{root_of(request)}/login?next={quote(here, safe='/')}", 303)


def refusal(request: Request, visitor: Visitor, access: Access) -> Response | None:
    if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > LONGEST_ADDRESS:
        return problem_response(request, TOO_LONG)
    if {"content-length", "transfer-encoding"} <= {*request.headers.keys()}:
        return problem_response(request, TWO_LENGTHS)
    if not access.answers_to(request.headers.get("host", "")):
        return problem_response(request, NOT_OUR_HOST)
    if is_of_another_page(request):
        return problem_response(request, NOT_OUR_PAGE)
    if request.method in READING:
        return refusal_to_read(request, visitor)
    problem = refusal_to_act(request, visitor, access)
    return problem_response(request, problem) if problem else None


def refusal_to_read(request: Request, visitor: Visitor) -> Response | None:
    path = path_of(request)
    if visitor.role or path.startswith(FOR_EVERYBODY):
        return None
    if visitor.name:
        return problem_response(request, RequestRefused(403, f"{visitor.name} has no role here"))
    if path.startswith(FOR_PROGRAMS):
        return problem_response(request, NO_TOKEN)
    return to_login(request)


def refusal_to_act(request: Request, visitor: Visitor, access: Access) -> RequestRefused | None:
    path = path_of(request)
    if not path.startswith(("/api/", "/actions/", "/login", "/logout")):
        return None if visitor.role else NO_TOKEN
    if not access.has_actions:
        return NO_ACTIONS
    if path.startswith("/api/"):
        return None if visitor.is_bearer else NO_TOKEN
    if not comes_from_us(request):
        return NOT_OUR_PAGE
    if path != "/login" and not visitor.is_person:
        return NOT_LOGGED_IN
    return None


def is_of_another_page(request: Request) -> bool:
    """Whether a page of another site sent the request, by its headers. Links may lead here."""
    headers = request.headers
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_followed = headers.get("sec-fetch-mode") == "navigate" and request.method in READING
    return not (is_followed and headers.get("sec-fetch-dest") == "document")


def comes_from_us(request: Request) -> bool:
    """Whether our own page sent the request, by the headers that browsers add for forms."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    scheme, _, host = request.headers.get("origin", "").partition("://")
    return scheme in ("http", "https") and host == request.headers.get("host")


# Before each route: the role that it takes.


Routes = TypeVar("Routes", bound=Sequence[object])


def guarded(routes: Routes, visits: Visits) -> Routes:
    """The same routes. Raises KeyError for one that `NEEDS` does not have."""
    for route in routes:
        if isinstance(route, Route):
            needs = {method: NEEDS[key] for method, key in keys_of(route).items()}
            route.app = RoleCheck(route.app, route.path, needs, visits)
    return routes


def keys_of(route: Route) -> dict[str, str]:
    """The route's name in `NEEDS`, by method."""
    methods = sorted(route.methods or ())
    return {m: f"{'GET' if m == 'HEAD' else m} {route.path}" for m in methods}


class RoleCheck:
    def __init__(
        self,
        app: ASGIApp,
        path: str,
        needs: Mapping[str, Role | None],
        visits: Visits,
    ) -> None:
        self._app = app
        self._path = path
        self._needs = needs
        self._visits = visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            # A method that the route does not take is answered by the route.
            role = self._needs.get(request.method)
            first = check_role(request, role) if role else None
        except RequestRefused as error:
            verb, by = verb_of(request.method, self._path), actor_of(request)
            if verb and by.name:
                target = next(iter(request.path_params.values()), "")
                await run_in_threadpool(self._visits.enter_refused, by, verb, target, str(error))
            raise
        await (first or self._app)(scope, receive, send)


def check_role(request: Request, role: Role) -> Response | None:
    """A redirect to the login, if needed. Raises Refused."""
    visitor: Visitor = request.state.visitor
    is_form = path_of(request).startswith("/actions/")
    if is_form and not visitor.is_person and request.method in READING:
        return to_login(request)
    if visitor.may(role):
        return None
    who = visitor.name or "everybody else"
    raise RequestRefused(403, f"this needs the role {role}; {who} has {visitor.role or 'none'}")
