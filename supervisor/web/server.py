"""The HTTP server: /metrics, health, a page of the jobs, and the same as JSON. Reads only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from supervisor.display.reports import progress_words
from supervisor.display.shapes import job_shape, run_shape
from supervisor.display.words import age, ahead, pause_words
from supervisor.errors import UnknownJob
from supervisor.ledger.runs import Ledger
from supervisor.web.metrics import Metrics

RECENT_RUNS = 30
MOST_RUNS = 1_000

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Endpoint = Callable[[Request], Response]


def create(ledger: Ledger, scraped: Metrics | None = None) -> Starlette:
    """The application over one ledger. Its endpoints block, so Starlette runs them in threads."""
    scraped = scraped or Metrics(ledger)
    templates = Environment(loader=PackageLoader("supervisor.web"), autoescape=True)
    templates.filters.update(age=age, ahead=ahead, pause=pause_words, progress=progress_words)

    def metrics(request: Request) -> Response:
        text, content_type = scraped.exposed(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    def readyz(_: Request) -> Response:
        ledger.client.ping()
        return PlainTextResponse("ready\n")

    def page(_: Request) -> Response:
        text = templates.get_template("jobs.html").render(
            jobs=ledger.jobs(),
            runs=ledger.recent(RECENT_RUNS),
            beat=ledger.beat(),
            now=datetime.now(UTC),
        )
        return HTMLResponse(text)

    def jobs(_: Request) -> Response:
        return JSONResponse([job_shape(job) for job in ledger.jobs()])

    def runs(request: Request) -> Response:
        limit = bounded(request.query_params.get("limit", "50"))
        if limit is None:
            return JSONResponse({"error": f"limit is a number from 1 to {MOST_RUNS}"}, 400)
        job = request.query_params.get("job")
        found = ledger.recent(limit) if job is None else ledger.history(known(ledger, job), limit)
        return JSONResponse([run_shape(run) for run in found])

    routes: dict[str, Endpoint] = {
        "/metrics": metrics,
        "/healthz": healthz,
        "/readyz": readyz,
        "/": page,
        "/api/v1/jobs": jobs,
        "/api/v1/runs": runs,
    }
    return Starlette(
        routes=[Route(path, endpoint) for path, endpoint in routes.items()],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=with_security_headers)],
        exception_handlers={RedisError: ledger_away, OSError: ledger_away, UnknownJob: unknown},
    )


async def with_security_headers(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await call_next(request)
    response.headers.update(SECURITY_HEADERS)
    return response


def ledger_away(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the ledger is away: {error}"}, 503)


def unknown(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 404)


def known(ledger: Ledger, job: str) -> str:
    return ledger.spec(job).name


def bounded(limit: str) -> int | None:
    return (
        int(limit) if limit.isascii() and limit.isdigit() and 0 < int(limit) <= MOST_RUNS else None
    )
