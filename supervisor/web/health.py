"""What machines ask: /metrics, /healthz, /readyz."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from supervisor.ledger.runs import Ledger
from supervisor.web.metrics import Metrics


def health_routes(ledger: Ledger, scraped: Metrics) -> list[Route]:
    def metrics(request: Request) -> Response:
        text, content_type = scraped.exposed(request.headers.get("accept", ""))
        return StreamingResponse(text, headers={"Content-Type": content_type})

    def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    def readyz(_: Request) -> Response:
        ledger.now()
        return PlainTextResponse("ready\n")

    return [Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)]
