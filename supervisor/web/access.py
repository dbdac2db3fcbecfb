"""Who may do what: the policy of a server, and the check of every request.

1. Bound to a loopback address, every user of this machine may read, unless the access file says
   otherwise. A page of another site could make a browser here send requests under a host name of
   its own, so requests for other host names than loopback ones are refused.
2. Bound to any other address, or behind a proxy, reading takes a token or a name from the proxy.
3. Acting always takes one of them: with neither configured there are no actions, and a server of
   rule 2 does not start.
4. A visitor has a role; `access_file.NEEDS` says which role each route takes.

A program sends a token itself (``Authorization: Bearer``), a browser the cookie of a session, and a
proxy that authenticates its visitors sends their names, together with a secret of its own.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
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
from supervisor.ledger.ledger import Ledger
from supervisor.times import to_ms
from supervisor.web.access_file import (
    NEEDS,
    NO_FILE,
    AccessFile,
    Policy,
    Role,
    digest,
    is_same,
)
from supervisor.web.http import (
    Budget,
    Problem,
    Refused,
    actor_of,
    ledger_unavailable,
    problem_response,
)
from supervisor.web.record import Visits, verb_of

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
    def has_tokens(self) -> bool:
        return self.token is not None or bool(self.policy.tokens)

    @property
    def has_actions(self) -> bool:
        return self.has_tokens or self.policy.proxy is not None

    @property
    def anonymous(self) -> Role | None:
        """The role of a visitor without a token or a name."""
        return Role.VIEWER if self.is_local and self.policy.anonymous == "viewer" else None

    def answers_to(self, host: str) -> bool:
        """`host`: the Host header of a request."""
        return not self.is_local or is_loopback(without_port(host))

    def name_of(self, given: str) -> str | None:
        """The name of the token; None for an unknown one."""
        if self.token is not None and is_same(given, self.token):
            return OWN_NAME
        found = self.policy.token(digest(given))
        return found.name if found else None

    def digest_of(self, name: str) -> str | None:
        """The digest of the token of that name."""
        if name == OWN_NAME:
            return digest(self.token) if self.token is not None else None
        found = self.policy.named(name)
        return found.hash if found else None

    def role_of(self, name: str) -> Role | None:
        """The role of the token of that name; None once the file no longer has it."""
        if name == OWN_NAME:
            return Role.EDITOR
        found = self.policy.named(name)
        return found.role if found else None


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


def without_port(host: str) -> str:
    """``127.0.0.1:9809`` and ``[::1]:9809`` without the port and the brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


# Sessions of browsers: a cookie, and a key in the address of all their pages.
#
# 1. A browser sends a cookie to every port of a host, so other servers on the machine could read
#    it. So a session takes two secrets that go different ways: the cookie, and the key in the
#    address, ``/s/<key>/...``. Neither allows anything alone.
# 2. The cookie's path is that address: browsers send it to no other one, on whatever port.
# 3. Both are random. The ledger has their digests only, so that reading it gives no session; and a
#    logout holds for every server on it.
# 4. Beside them stands the name of the token, and a seal that only this cookie and the same token
#    make: changing or removing a token ends its sessions. The role is looked up at each request.

COOKIE = "supervisor_session"

#: The addresses of all sessions begin with this.
ROOTS = "/s/"

SESSION_TTL = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Session:
    """The two secrets of a new session."""

    cookie: str
    key: str

    @property
    def root(self) -> str:
        """What the addresses of this session's pages begin with."""
        return ROOTS + self.key


class Sessions:
    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys

    def begin(self, name: str, token_digest: str) -> Session:
        """name: of the token that was shown."""
        session = Session(secrets.token_urlsafe(32), secrets.token_hex(16))
        facts = {
            "name": name,
            "key": digest(session.key),
            "seal": seal(session.cookie, token_digest),
        }
        self._client.set(self._place(session.cookie), json.dumps(facts), px=to_ms(SESSION_TTL))
        return session

    def name(self, cookie: str, root: str, digest_of: Callable[[str], str | None]) -> str | None:
        """The name of the session's token; None without one. root: what the address begins with.

        digest_of: the digest of the token of that name, if there is one.
        """
        text = self._client.get(self._place(cookie))
        if text is None:
            return None
        facts = json.loads(text)
        token_digest = digest_of(facts["name"])
        is_valid = (
            token_digest is not None
            and is_same(digest(root.removeprefix(ROOTS)), facts["key"])
            and is_same(seal(cookie, token_digest), facts["seal"])
        )
        return str(facts["name"]) if is_valid else None

    def end(self, cookie: str) -> None:
        self._client.delete(self._place(cookie))

    def _place(self, cookie: str) -> str:
        return self._keys.session(digest(cookie))


def seal(cookie: str, token_digest: str) -> str:
    return hmac.new(cookie.encode(errors="replace"), token_digest.encode(), "sha256").hexdigest()


def split_root(path: str) -> tuple[str, str]:
    """The root of a session, valid or not, and the path below it."""
    if not path.startswith(ROOTS):
        return "", path
    key, _, rest = path.removeprefix(ROOTS).partition("/")
    return f"{ROOTS}{key}", f"/{rest}"


# Every request is checked before the routes.
#
# 1. A Host that is not ours is refused (DNS rebinding), and so is what the page of another origin
#    sends, except a link that is followed: that page cannot read the answer, but could cause it.
# 2. Health, the login form and the files of the page take no role.
# 3. Reading takes a role; a browser is sent to the login form, a program gets a 401.
# 4. The API acts for the bearer of a token, and for nothing that a browser adds by itself: no page
#    of another site can make it send that header.
# 5. The page acts for a session or for a user that the proxy names, requested from our own origin;
#    for a session below its own root: the cookie alone, which other servers on this machine may
#    receive, is no session.
# 6. Then the route checks the role (`RoleCheck`).


#: The same for every visitor: the session is not looked up.
ALIKE = ("/healthz", "/readyz", "/static/")

FOR_EVERYBODY = (*ALIKE, "/login")

#: Programs ask for these: a redirection to a form is of no use to them.
FOR_PROGRAMS = ("/api/", "/metrics", "/events")

READING = ("GET", "HEAD")

#: The longest path with its query, in bytes.
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
    """name: of the token or, from the proxy, of the person; empty without either.

    role: None without permission to read. root: what the addresses of the visitor's pages begin
    with. session: the cookie. is_proxied: the proxy authenticated the visitor.
    """

    name: str = ""
    role: Role | None = None
    root: str = ""
    session: str = ""
    is_bearer: bool = False
    is_proxied: bool = False

    @property
    def is_person(self) -> bool:
        """Whether the visitor acts by the page's buttons."""
        return bool(self.session) or self.is_proxied

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
        answer, inner = await self._checked(scope)
        await (answer or self._app)(inner, receive, send)

    async def _checked(self, outer: Scope) -> tuple[Response | None, Scope]:
        """The refusal, if the request is refused, and the scope as the routes see it."""
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
        answer = refusal(request, visitor, access)
        is_over = root and not visitor.session and not path_of(request).startswith(ALIKE)
        if is_over and not answer and request.method in READING:
            # A session that has ended, or another browser's: the page without it.
            answer = RedirectResponse(access.prefix + address_of(request), 303)
        return answer, scope

    async def _session(self, request: Request, root: str, patience_seconds: float) -> str | None:
        """The name of its token. The event loop does not wait for the ledger."""
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
    """The visitor, known by a token, else by a session, else by a name from the proxy.

    root, name: of the session, if there is one.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    bearer = access.name_of(given.strip()) if scheme.lower() == "bearer" else None
    shown = bearer or name
    # The file may have changed since the name was found in it.
    if shown and (role := access.role_of(shown)):
        cookie, root = request.cookies[COOKIE] if name else "", access.prefix + root
        return Visitor(shown, role, root, cookie, is_bearer=bool(bearer))
    proxy = access.policy.proxy
    if proxy is None or not proxy.sent(request.headers):
        return Visitor(role=access.anonymous, root=access.prefix)
    if request.headers.get("x-forwarded-proto") in ("http", "https"):
        request.scope["scheme"] = request.headers["x-forwarded-proto"]
    user = proxy.user(request.headers)
    if not user:
        return Visitor(role=access.anonymous, root=access.prefix)
    return Visitor(user, proxy.role(request.headers), access.prefix, is_proxied=True)


def address_of(request: Request) -> str:
    """The address as a path of this server, without the root of a session."""
    path, query = path_of(request), request.scope["query_string"].decode("latin-1")
    return quote("/" + path.lstrip("/"), safe="/@:+") + (f"?{query}" if query else "")


def to_login(request: Request) -> Response:
    """Redirects to the login form, which leads back here."""
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
    """Whether a page of another site sent the request, by its headers. Links may lead here."""
    headers = request.headers
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_followed = headers.get("sec-fetch-mode") == "navigate" and request.method in READING
    return not (is_followed and headers.get("sec-fetch-dest") == "document")


def path_of(request: Request) -> str:
    """The path as the routes see it; `request.url` depends on the Host header."""
    return str(request.scope["path"])


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
        except Refused as error:
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
    raise Refused(403, f"this takes the role {role}, and {who} is {visitor.role or 'none'}")
