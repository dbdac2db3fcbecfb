"""Who may do what: the policy of a server, and the check of every request.

1. Bound to a loopback address, everybody on this machine may read, unless the access file says
   otherwise. A page of any site could make a browser here send requests under a name of its own,
   so only loopback names are answered to.
2. Bound to any other address, or behind a proxy, reading takes a token or a name from the proxy.
3. Acting takes one of them everywhere: with neither there are no actions, and no server of rule 2.
4. A visitor has a role, and a scope of jobs; `roles.NEEDS` says which role each route takes.

A program sends a token itself (``Authorization: Bearer``), a browser the cookie of a session, and a
proxy that knows its visitors their names, together with a secret of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import quote

from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.errors import NotConfigured, UnknownJob, UnknownRun
from supervisor.ledger.scoped import EVERYTHING, ScopedLedger, current_scope
from supervisor.ledger.scoped import Scope as JobScope
from supervisor.web.access_file import NO_FILE, AccessFile, Grant, Policy
from supervisor.web.budget import Budget
from supervisor.web.http import (
    Problem,
    Refused,
    actor_of,
    ledger_unavailable,
    problem_response,
)
from supervisor.web.record import Visits, verb_of
from supervisor.web.roles import NEEDS, About, Need, Role
from supervisor.web.sessions import COOKIE, Sessions, digest, is_same, split_root

SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Access:
    """token: the secret of SUPERVISOR_TOKEN, an editor of all jobs, if there is one.

    is_local: only this machine reaches the server. prefix: of all addresses, where a proxy serves
    them below a path: ``/supervisor``, or empty.
    """

    token: str | None = None
    is_local: bool = True
    file: AccessFile | None = None
    prefix: str = ""

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
        """Raises NotConfigured where the address asks for a token that is not there, or is weak."""
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
    def has_tokens(self) -> bool:
        return self.token is not None or bool(self.policy.tokens)

    @property
    def has_actions(self) -> bool:
        return self.has_tokens or self.policy.proxy is not None

    @property
    def anonymous(self) -> Role | None:
        """What everybody may who reaches the server."""
        return Role.VIEWER if self.is_local and self.policy.anonymous == "viewer" else None

    def answers_to(self, host: str) -> bool:
        """`host`: the Host header of a request."""
        return not self.is_local or is_loopback(without_port(host))

    def name_of(self, given: str) -> str | None:
        """Of the token; None for one that is none."""
        if self.token is not None and is_same(given, self.token):
            return OWN_NAME
        found = self.policy.token(digest(given))
        return found.name if found else None

    def digest_of(self, name: str) -> str | None:
        """Of the token of that name."""
        if name == OWN_NAME:
            return digest(self.token) if self.token is not None else None
        found = self.policy.named(name)
        return found.hash if found else None

    def grant_of(self, name: str) -> Grant | None:
        """Of the token of that name; None where the file has it no longer."""
        return Grant(role=Role.EDITOR) if name == OWN_NAME else self.policy.named(name)


#: Of SUPERVISOR_TOKEN; no token of the file has it.
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


# Every request is checked before the routes.
#
# 1. A Host that is not ours is refused (DNS rebinding), and so is what the page of another origin
#    sends, except a link that is followed: that page cannot read the answer, but could cause it.
# 2. Health, the login form and the files of the page are for everybody.
# 3. Reading takes a role; a browser is sent to the login form, a program gets a 401.
# 4. The API acts for the bearer of a token, and for nothing that a browser adds by itself: no page
#    of another site can make it send that header.
# 5. The page acts for a session or for whom the proxy names, requested from our own origin; for a
#    session below its own root: the cookie alone, which other servers on this machine may receive,
#    is no session.
# 6. Then the route asks for its role (`RoleCheck`). Who sees some jobs only gets a 404 for the
#    others, and a 403 from what is about all of them.


#: The same for every visitor: whose session it is, is not asked.
ALIKE = ("/healthz", "/readyz", "/static/")

FOR_EVERYBODY = (*ALIKE, "/login")

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
    """name: of the token or, from the proxy, of the person; empty for one who shows neither.

    role: None for one who may not even read. scope: the jobs that it is for. root: what the
    addresses of the visitor's pages begin with. session: the cookie. is_proxied: the proxy says who
    it is.
    """

    name: str = ""
    role: Role | None = None
    scope: JobScope = EVERYTHING
    root: str = ""
    session: str = ""
    is_bearer: bool = False
    is_proxied: bool = False

    @property
    def is_person(self) -> bool:
        """Who acts by the page's buttons."""
        return bool(self.session) or self.is_proxied

    def may(self, role: Role) -> bool:
        return self.role is not None and self.role.includes(role)


#: Sessions are looked up in as many threads; the answers have others.
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
        answer, inner = await self._checked(scope)
        await (answer or self._app)(inner, receive, send)

    async def _checked(self, outer: Scope) -> tuple[Response | None, Scope]:
        """The refusal, if it is one, and the scope as the routes see it."""
        access, budget = self._access, Budget()
        root, scope = without_roots(outer, access.prefix)
        request = Request(scope)
        visitor = Visitor(role=access.anonymous, root=access.prefix)
        scope["state"] = scope.get("state", {}) | {"visitor": visitor, "budget": budget}
        try:
            name = await self._session(request, root, budget.seconds_left)
        except (RedisError, OSError, TimeoutError) as error:
            return ledger_unavailable(request, error), scope
        visitor = visitor_of(request, access, root if name else "", name)
        scope["state"]["visitor"] = visitor
        current_scope.set(visitor.scope)
        answer = refusal(request, visitor, access)
        is_over = root and not visitor.session and not path_of(request).startswith(ALIKE)
        if is_over and not answer and request.method in READING:
            # A session that has ended, or another browser's: the page as everybody may see it.
            answer = RedirectResponse(access.prefix + address_of(request), 303)
        return answer, scope

    async def _session(self, request: Request, root: str, patience_seconds: float) -> str | None:
        """Whose it is. The event loop does not wait for the ledger."""
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not root or path_of(request).startswith(ALIKE):
            return None
        asked = self._threads.submit(self._sessions.name, cookie, root, self._access.digest_of)
        return await asyncio.wait_for(asyncio.wrap_future(asked), patience_seconds)


def without_roots(scope: Scope, prefix: str) -> tuple[str, Scope]:
    """The root of a session, and the request without it, and without the proxy's prefix."""
    path, raw = scope["path"], scope["raw_path"].decode("latin-1")
    if path == prefix or path.startswith(f"{prefix}/"):
        path, raw = path.removeprefix(prefix) or "/", raw.removeprefix(prefix) or "/"
    root, path = split_root(path)
    raw = "/" + raw.removeprefix(root).lstrip("/")
    return root, {**scope, "path": path, "raw_path": raw.encode("latin-1")}


def visitor_of(request: Request, access: Access, root: str, name: str | None) -> Visitor:
    """Who shows a token, else who has the session, else whom the proxy names.

    root, name: of the session, if there is one.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    bearer = access.name_of(given.strip()) if scheme.lower() == "bearer" else None
    shown = bearer or name
    # The file may have changed since the name was found in it.
    if shown and (grant := access.grant_of(shown)):
        cookie, root = request.cookies[COOKIE] if name else "", access.prefix + root
        return Visitor(shown, grant.role, grant.scope, root, cookie, is_bearer=bool(bearer))
    proxy = access.policy.proxy
    if proxy is None or not proxy.sent(request.headers):
        return Visitor(role=access.anonymous, root=access.prefix)
    if request.headers.get("x-forwarded-proto") in ("http", "https"):
        request.scope["scheme"] = request.headers["x-forwarded-proto"]
    user, found = proxy.user(request.headers), proxy.grant(request.headers)
    if not user:
        return Visitor(role=access.anonymous, root=access.prefix)
    role, scope = (found.role, found.scope) if found else (None, EVERYTHING)
    return Visitor(user, role, scope, access.prefix, is_proxied=True)


def address_of(request: Request) -> str:
    """The address as a path of this server, without the root of a session."""
    path, query = path_of(request), request.scope["query_string"].decode("latin-1")
    return quote("/" + path.lstrip("/"), safe="/@:+") + (f"?{query}" if query else "")


def to_login(request: Request) -> Response:
    """To the login form, and from there back."""
    there = f"{request.state.visitor.root}/login?next={quote(address_of(request), safe='/')}"
    return RedirectResponse(there, 303)


def refusal(request: Request, visitor: Visitor, access: Access) -> Response | None:
    if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > LONGEST_ADDRESS:
        return problem_response(request, TOO_LONG)
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
        return problem_response(request, Problem(403, f"{visitor.name} has no role here"))
    if path.startswith(FOR_PROGRAMS):
        return problem_response(request, NO_TOKEN)
    return to_login(request)


def refusal_to_act(request: Request, visitor: Visitor, access: Access) -> Problem | None:
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


# Before each route: the role that it takes, and whether what it is about is there for the visitor.


Routes = TypeVar("Routes", bound=Sequence[object])


def guarded(routes: Routes, ledger: ScopedLedger, visits: Visits) -> Routes:
    """The same routes. Raises KeyError for one that `NEEDS` does not have."""
    for route in routes:
        if isinstance(route, Route):
            needs = {method: NEEDS[key] for method, key in keys_of(route).items()}
            route.app = RoleCheck(route.app, route.path, needs, ledger, visits)
    return routes


def keys_of(route: Route) -> dict[str, str]:
    """By method, what it is called in `NEEDS`."""
    methods = sorted(route.methods or ())
    return {m: f"{'GET' if m == 'HEAD' else m} {route.path}" for m in methods}


class RoleCheck:
    def __init__(
        self,
        app: ASGIApp,
        path: str,
        needs: Mapping[str, Need],
        ledger: ScopedLedger,
        visits: Visits,
    ) -> None:
        self._app = app
        self._path = path
        self._needs = needs
        self._ledger = ledger
        self._visits = visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            first = await self._check(request)
        except (Refused, UnknownJob, UnknownRun) as error:
            verb, by = verb_of(request.method, self._path), actor_of(request)
            if verb and by.name:
                target = next(iter(request.path_params.values()), "")
                await run_in_threadpool(self._visits.enter_refused, by, verb, target, str(error))
            raise
        await (first or self._app)(scope, receive, send)

    async def _check(self, request: Request) -> Response | None:
        """Where to go first, if anywhere. Raises Refused, UnknownJob and UnknownRun."""
        first = None
        # A method that the route does not take is answered by the route.
        need = self._needs.get(request.method)
        if need and need.role:
            first = check_role(request, need.role)
            if not first and not request.state.visitor.scope.is_everything:
                await self._check_scope(request, need.about)
        return first

    async def _check_scope(self, request: Request, about: About) -> None:
        """Raises UnknownJob, UnknownRun, and Refused for what is about all jobs."""
        target = next(iter(request.path_params.values()), "")
        if about is About.ALL:
            scope = request.state.visitor.scope
            raise Refused(
                403, f"this is about all jobs, and {request.state.visitor.name} sees {scope}"
            )
        if about is About.JOB:
            await run_in_threadpool(self._ledger.spec, target)
        if about is About.RUN:
            await run_in_threadpool(self._ledger.run, target)


def check_role(request: Request, role: Role) -> Response | None:
    """Where to go first, if anywhere. Raises Refused."""
    visitor: Visitor = request.state.visitor
    is_form = path_of(request).startswith("/actions/")
    if is_form and not visitor.is_person and request.method in READING:
        return to_login(request)
    if visitor.may(role):
        return None
    who = visitor.name or "everybody else"
    raise Refused(403, f"this takes the role {role}, and {who} is {visitor.role or 'none'}")
