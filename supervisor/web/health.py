"""What machines ask: /metrics, /healthz, /readyz. Each is answered in time while Redis hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import structlog
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from supervisor.ledger.connection import NotServed, check_served, explained
from supervisor.ledger.runs import Ledger
from supervisor.web.budget import BUDGET_SECONDS, OutOfTime, Threads
from supervisor.web.metrics import Metrics

#: A scrape waits for the one before; of those who ask whether the server is ready, each is quick.
SCRAPE_THREADS, READY_THREADS = 2, 4

#: What is left of the budget then is for asking whether the ledger answers at all.
SCRAPE_SECONDS = BUDGET_SECONDS - 1

log = structlog.get_logger("supervisor.web")


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
        """Answers everybody, so it does not say where the ledger is."""
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
    """Made as they are sent, without a thread for each: a part takes milliseconds."""
    for part in parts:
        yield part
