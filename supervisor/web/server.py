"""The HTTP server: /metrics, health, the status page, and /api/v1, over one ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from supervisor.errors import InvalidKey, InvalidRequest, RunEnded, UnknownJob, UnknownRun
from supervisor.execution.consumption import Queues
from supervisor.ledger.runs import Ledger
from supervisor.web.access import Access
from supervisor.web.actions import action_routes
from supervisor.web.api import Api
from supervisor.web.api_routes import api_routes
from supervisor.web.budget import OutOfTime, Threads
from supervisor.web.events import event_routes
from supervisor.web.gate import Gate
from supervisor.web.headers import SecurityHeaders
from supervisor.web.health import health_routes
from supervisor.web.login import login_routes
from supervisor.web.metrics import Metrics
from supervisor.web.pages import page_routes
from supervisor.web.problems import (
    Refused,
    ledger_unavailable,
    not_served,
    not_valid,
    out_of_time,
    refused,
    too_late,
    unknown,
)
from supervisor.web.watch import Watch

READ_ONLY = Access()


def utc_now() -> datetime:
    return datetime.now(UTC)


def create(
    ledger: Ledger,
    access: Access = READ_ONLY,
    metrics: Metrics | None = None,
    broker: Queues | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """broker: that of the app; without, what the ledger and the workers tell of it."""
    threads = Threads()
    watch = Watch(ledger, is_stopping)
    return Starlette(
        routes=[
            *health_routes(ledger, metrics or Metrics(ledger, broker)),
            *api_routes(Api(ledger, broker), threads),
            *event_routes(watch),
            *login_routes(access),
            *action_routes(ledger, threads),
            *page_routes(ledger, access, broker, threads),
            Mount("/static", StaticFiles(packages=[("supervisor.web", "static")])),
        ],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(Gate, access=access, clock=utc_now),
        ],
        exception_handlers={
            HTTPException: not_served,
            OutOfTime: out_of_time,
            RedisError: ledger_unavailable,
            OSError: ledger_unavailable,
            UnknownJob: unknown,
            UnknownRun: unknown,
            InvalidKey: not_valid,
            InvalidRequest: not_valid,
            RunEnded: too_late,
            Refused: refused,
        },
        lifespan=watch.lifespan,
    )
