"""The HTTP server: /metrics, health, the status page, and /api/v1."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.logs import get_logger
from supervisor.operate.job_edits import JobEdits
from supervisor.store.connection import check_served
from supervisor.store.failures import NotServed, explained
from supervisor.web.access import Access, AccessCheck, guarded
from supervisor.web.actions import action_routes, login_routes
from supervisor.web.api import Api, api_routes
from supervisor.web.backfill import backfill_routes
from supervisor.web.budget import Budget, OutOfTime, Threads
from supervisor.web.bulk import bulk_routes
from supervisor.web.editor import editor_routes
from supervisor.web.http import EXCEPTION_HANDLERS, failed
from supervisor.web.metrics import Metrics
from supervisor.web.pages import page_routes
from supervisor.web.record import Visits
from supervisor.web.sessions import Sessions
from supervisor.web.templating import LONGEST_NAME

if TYPE_CHECKING:
    from celery import Celery

# Routes for monitoring. Each answers in time while Redis hangs.

#: A readiness check is quick; of scrapes, one is read and one is written at a time.
READY_THREADS = 4

#: Prometheus waits ten seconds for a scrape. So much of them is for reading; then it is checked
#: whether the ledger answers at all. A call that hangs ends sooner.
SCRAPE_SECONDS, READING_SECONDS = 9.0, 8.0

log = get_logger("supervisor.web")


def health_routes(ledger: Ledger, scraped: Metrics) -> list[Route]:
    reading, writing = Threads(1, READING_SECONDS), ThreadPoolExecutor(1, "scrape")
    ready_threads = Threads(READY_THREADS)

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        request.state.budget = Budget(SCRAPE_SECONDS)
        try:
            scrape = await reading.run(request, scraped.read)
        except OutOfTime:
            if await answers(request):
                return PlainTextResponse("the scrape takes too long\n", 503)
            scrape = None
        write = partial(scraped.written, scrape, accept)
        text, content_type = await asyncio.get_running_loop().run_in_executor(writing, write)
        return Response(text, headers={"Content-Type": content_type})

    async def readyz(request: Request) -> Response:
        """Anyone may ask, so the answer does not say where the ledger is."""
        try:
            if await answers(request):
                refusal = await ready_threads.run(request, ledger.refusal)
                text, code = ("Redis refuses writes\n", 503) if refusal else ("ready\n", 200)
                return PlainTextResponse(text, code)
        except NotServed as error:
            return PlainTextResponse(f"{error}\n", 503)
        except (RedisError, OSError, OutOfTime) as error:
            log.warning("ledger unavailable", error=explained(error))
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
    app: Celery | None = None,
    name: str = "",
) -> Starlette:
    """broker: that of the app; without it, as the ledger and the workers report it.

    app: whose jobs are made and edited here; without it, none are. name: of the installation, for
    people.
    """
    threads, edits, visits = Threads(), JobEdits(ledger, app), Visits(ledger)
    sessions = Sessions(ledger)
    routes = [
        *health_routes(ledger, metrics or Metrics(ledger, broker)),
        *api_routes(Api(ledger, broker, edits), threads),
        *login_routes(access, sessions, visits),
        *editor_routes(ledger, edits, broker, threads),
        *bulk_routes(ledger, threads),
        *action_routes(ledger, edits, threads),
        *backfill_routes(ledger, threads),
        *page_routes(ledger, access, broker, edits, threads),
    ]
    made = Starlette(
        routes=[
            *guarded(routes, visits),
            Mount("/static", StaticFiles(packages=[("supervisor.web", "static")])),
        ],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(AccessCheck, access=access, sessions=sessions),
            Middleware(ServerErrorMiddleware, handler=failed),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    made.state.installation = name[:LONGEST_NAME]
    return made
