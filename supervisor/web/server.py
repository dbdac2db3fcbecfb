"""The HTTP server: /metrics, health, the status page, and /api/v1, over one ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from supervisor.ledger.connection import NotServed, check_served, explained
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.ledger.scoped import ScopedLedger
from supervisor.logs import get_logger
from supervisor.operate.job_edits import JobEdits
from supervisor.web.access import Access, AccessCheck, SecurityHeaders, guarded
from supervisor.web.actions import action_routes, login_routes
from supervisor.web.api import Api, api_routes
from supervisor.web.budget import BUDGET_SECONDS, OutOfTime, Threads
from supervisor.web.editor import editor_routes
from supervisor.web.http import EXCEPTION_HANDLERS
from supervisor.web.live import Watch, event_routes
from supervisor.web.metrics import Metrics
from supervisor.web.pages import page_routes
from supervisor.web.record import Visits
from supervisor.web.sessions import Sessions

if TYPE_CHECKING:
    from celery import Celery

# Routes for machines. Each is answered in time while Redis hangs.

#: A scrape waits for the one before it; asking whether the server is ready is quick.
SCRAPE_THREADS, READY_THREADS = 2, 4

#: The rest of the budget is for checking whether the ledger answers at all.
SCRAPE_SECONDS = BUDGET_SECONDS - 1

log = get_logger("supervisor.web")


def health_routes(ledger: Ledger, scraped: Metrics) -> list[Route]:
    scrape_threads, ready_threads = Threads(SCRAPE_THREADS, SCRAPE_SECONDS), Threads(READY_THREADS)

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        try:
            text, content_type = await scrape_threads.run(request, scraped.exposed, accept)
        except OutOfTime:
            if await answers(request):
                return PlainTextResponse("the scrape takes too long\n", 503)
            text, content_type = scraped.without_ledger(accept)
        return StreamingResponse(in_parts(text), headers={"Content-Type": content_type})

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(request: Request) -> Response:
        """For everybody, so it does not say where the ledger is."""
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


async def in_parts(parts: Iterable[str]) -> AsyncIterator[str]:
    """Made as they are sent, in the event loop: a part takes milliseconds."""
    for part in parts:
        yield part


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
    watch = Watch(ledger, is_stopping)
    routes = [
        *health_routes(ledger, metrics or Metrics(ledger, broker)),
        *api_routes(Api(seen, broker, edits), threads),
        *event_routes(watch, seen),
        *login_routes(access, sessions, visits),
        *editor_routes(seen, edits, threads),
        *action_routes(seen, edits, threads),
        *page_routes(seen, access, broker, edits, threads),
        Mount("/static", StaticFiles(packages=[("supervisor.web", "static")])),
    ]
    return Starlette(
        routes=guarded(routes, seen, visits),
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(AccessCheck, access=access, sessions=sessions),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=watch.lifespan,
    )
