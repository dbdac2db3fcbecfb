"""The HTTP server: /metrics, health, the status page, and /api/v1, of one ledger or of several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from supervisor.errors import InvalidRequest
from supervisor.ledger.connection import NotServed, check_served, explained
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.ledger.scoped import ScopedLedger
from supervisor.logs import get_logger
from supervisor.operate.job_edits import JobEdits
from supervisor.web.access import Access, AccessCheck, Sessions, guarded
from supervisor.web.actions import action_routes, login_routes
from supervisor.web.api import Api, api_routes
from supervisor.web.editor import editor_routes
from supervisor.web.http import (
    BUDGET_SECONDS,
    EXCEPTION_HANDLERS,
    ONE_OF_SEVERAL,
    TEMPLATES,
    OutOfTime,
    Refused,
    Threads,
)
from supervisor.web.jobs_page import Overview
from supervisor.web.live import Watch, event_routes
from supervisor.web.metrics import Metrics, View, escaped, view_of
from supervisor.web.pages import page_routes
from supervisor.web.record import Visits

if TYPE_CHECKING:
    from celery import Celery

# Routes for monitoring. Each answers in time while Redis hangs.

#: A scrape waits for the one before it; a readiness check is quick.
SCRAPE_THREADS, READY_THREADS = 2, 4

#: The rest of the budget is for checking whether the ledger answers at all.
SCRAPE_SECONDS = BUDGET_SECONDS - 1

log = get_logger("supervisor.web")


def health_routes(ledger: Ledger, scraped: Metrics) -> list[Route]:
    scrape_threads, ready_threads = Threads(SCRAPE_THREADS, SCRAPE_SECONDS), Threads(READY_THREADS)

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        try:
            view = view_of(request.query_params, scraped.by)
        except InvalidRequest as error:
            return PlainTextResponse(f"{error}\n", 400)
        try:
            text, content_type = await scrape_threads.run(request, scraped.exposed, accept, view)
        except OutOfTime:
            if await answers(request):
                return PlainTextResponse("the scrape takes too long\n", 503)
            text, content_type = scraped.without_ledger(accept)
        return StreamingResponse(in_parts(text), headers={"Content-Type": content_type})

    async def readyz(request: Request) -> Response:
        """Anyone may ask, so the answer does not say where the ledger is."""
        try:
            if await answers(request):
                return PlainTextResponse("ready\n")
        except NotServed as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("the ledger is unavailable\n", 503)

    async def answers(request: Request) -> bool:
        try:
            await ready_threads.run(request, check_served, ledger.client)
        except NotServed:
            raise
        except (RedisError, OSError, OutOfTime) as error:
            log.warning("ledger unavailable", error=explained(error))
            return False
        return True

    return [Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)]


async def healthz(_: Request) -> Response:
    return PlainTextResponse("alive\n")


async def in_parts(parts: Iterable[str]) -> AsyncIterator[str]:
    """The parts are made as they are sent, in the event loop: a part takes milliseconds."""
    for part in parts:
        yield part


#: Sent with every answer: nothing inline, nothing from another host, no frame in another page.
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


READ_ONLY = Access()


def create(
    ledger: Ledger,
    access: Access = READ_ONLY,
    metrics: Metrics | None = None,
    broker: Queues | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    app: Celery | None = None,
) -> Starlette:
    """broker: that of the app; without it, as the ledger and the workers report it.

    app: whose jobs are made and edited here; without it, none are.
    """
    seen, sessions = ScopedLedger(ledger.client, ledger.keys), Sessions(ledger)
    threads, edits, visits = Threads(), JobEdits(ledger, app, seen), Visits(ledger)
    watch, overview = Watch(ledger, is_stopping), Overview(ledger, broker)
    routes = [
        *health_routes(ledger, metrics or Metrics(ledger, broker)),
        *api_routes(Api(seen, broker, edits), threads),
        *event_routes(watch, seen),
        *login_routes(access, sessions, visits),
        *editor_routes(seen, edits, threads),
        *action_routes(seen, edits, threads),
        *page_routes(seen, access, broker, edits, threads, overview),
    ]
    served = checked_site(guarded(routes, seen, visits), access, sessions, watch.lifespan)
    served.state.overview = overview
    return served


def checked_site(
    routes: Sequence[Route], access: Access, sessions: Sessions, lifespan: Lifespan[Starlette]
) -> Starlette:
    """The routes and the files of the pages, behind the check of each request."""
    return Starlette(
        routes=[*routes, Mount("/static", StaticFiles(packages=[("supervisor.web", "static")]))],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(AccessCheck, access=access, sessions=sessions),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=lifespan,
    )


# Several ledgers: a site for each below its name, one list and one /metrics.


LIST = "/ledgers"

#: No ledger is called as what is of all, or as what the addresses of sessions begin with.
TAKEN = ("healthz", "ledgers", "login", "metrics", "readyz", "s", "static")


@dataclass(frozen=True, slots=True)
class Site:
    """What one ledger has. app: its pages and its API, with the access of paths below its name."""

    ledger: Ledger
    app: Starlette
    metrics: Metrics


def several(sites: Mapping[str, Site], access: Access) -> ASGIApp:
    """Each ledger's pages and API below its name, and in front of them what is about all.

    access: of the whole. The list of ledgers and health are for everybody.
    """
    front = front_of(sites, access)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await front(scope, receive, send)
            return
        # A proxy may have taken its own prefix away, or not.
        path = scope["path"].removeprefix(access.prefix)
        raw = scope["raw_path"].decode("latin-1").removeprefix(access.prefix)
        name = path.lstrip("/").partition("/")[0]
        if path in ("", "/"):
            path = raw = LIST
        whole = {"path": access.prefix + path, "raw_path": (access.prefix + raw).encode("latin-1")}
        if name in sites:
            whole[ONE_OF_SEVERAL] = {"name": name, "list": access.prefix + LIST}
        await (sites[name].app if name in sites else front)({**scope, **whole}, receive, send)

    return app


def front_of(sites: Mapping[str, Site], access: Access) -> Starlette:
    threads = {name: Threads(1, SCRAPE_SECONDS) for name in sites}

    async def ledgers(_: Request) -> Response:
        facts = {"ledgers": sites, "root": access.prefix}
        return HTMLResponse(TEMPLATES.get_template("ledgers.html").render(**facts))

    async def metrics(request: Request) -> Response:
        accept, visitor = request.headers.get("accept", ""), request.state.visitor
        if not visitor.scope.is_everything:
            raise Refused(403, f"this is about all jobs, and {visitor.name} sees {visitor.scope}")
        try:
            view_of(request.query_params)
        except InvalidRequest as error:
            return PlainTextResponse(f"{error}\n", 400)

        async def families(name: str, site: Site) -> tuple[Families, str]:
            asked = site.metrics, name, accept
            try:
                view = view_of(request.query_params, site.metrics.by)
                return await threads[name].run(request, families_of, *asked, view)
            except OutOfTime:
                return families_of(*asked, None)

        found = await asyncio.gather(*(families(*each) for each in sites.items()))
        content_type = found[0][1]
        text = merged([each for each, _ in found], is_openmetrics="openmetrics" in content_type)
        return StreamingResponse(in_parts(text), headers={"Content-Type": content_type})

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for site in sites.values():
                await stack.enter_async_context(site.app.router.lifespan_context(site.app))
            yield

    sessions = Sessions(next(iter(sites.values())).ledger)  # there are none of the whole
    routes = [
        Route(LIST, ledgers),
        Route("/login", ledgers),  # each ledger has its own
        Route("/healthz", healthz),
        Route("/readyz", healthz),
        Route("/metrics", metrics),
    ]
    return checked_site(routes, access, sessions, lifespan)


#: The lines of each family of metrics, by the two that describe it.
Families = dict[tuple[str, str], list[str]]


def families_of(
    metrics: Metrics, ledger: str, accept: str, view: View | None
) -> tuple[Families, str]:
    """The metrics of one ledger, with its name as a label, and their content type. Without a view
    they say that the ledger is unavailable."""
    parts, content_type = metrics.exposed(accept, view) if view else metrics.without_ledger(accept)
    label = f'ledger="{escaped(ledger)}"'
    found: Families = {}
    family: list[str] = []
    # Not splitlines(): a label may have other characters that it takes for the end of a line.
    lines = chain.from_iterable(part.rstrip("\n").split("\n") for part in parts)
    for line in lines:
        if line.startswith("# HELP"):
            family = found.setdefault((line, next(lines)), [])
        elif not line.startswith("#"):
            family.append(labelled(line, label))
    return found, content_type


def labelled(line: str, label: str) -> str:
    """``name{job="x"} 1.0`` and ``name 1.0`` with one more label."""
    name, _, value = line.partition(" ")
    if "{" not in name:
        return f"{name}{{{label}}} {value}"
    name, _, rest = line.partition("{")
    return f"{name}{{{label},{rest}"


def merged(ledgers: Iterable[Families], *, is_openmetrics: bool) -> Iterator[str]:
    """The families of all ledgers, each family once."""
    found: Families = {}
    for families in ledgers:
        for head, lines in families.items():
            found.setdefault(head, []).extend(lines)
    for head, lines in found.items():
        yield "\n".join((*head, *lines)) + "\n"
    if is_openmetrics:
        yield "# EOF\n"
