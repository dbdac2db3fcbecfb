"""The verb that serves /metrics, health and the page."""

from __future__ import annotations

import os
import socket

import click
import uvicorn

from supervisor import logs
from supervisor.cli.context import Context, pass_context
from supervisor.web.metrics import Metrics
from supervisor.web.server import create

#: The name that Prometheus' own client for Python has for it.
NO_CREATED = "PROMETHEUS_DISABLE_CREATED_SERIES"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=9809, show_default=True)
@click.option("--loglevel", "log_level", default="info", show_default=True)
@pass_context
def serve(context: Context, host: str, port: int, log_level: str) -> None:
    """Serve /metrics, /healthz, /readyz, a page of the jobs and /api/v1."""
    logs.configure(level=log_level)
    listener = bound(host, port)
    config = uvicorn.Config(
        create(context.ledger, metrics_of(context)),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


def metrics_of(context: Context) -> Metrics:
    """Of the app's broker, where an app was named."""
    has_created = os.environ.get(NO_CREATED, "").lower() not in ("1", "true", "t")
    if context.app is None:
        return Metrics(context.ledger, has_created=has_created)
    from supervisor.queues import AppQueues

    return Metrics(context.ledger, AppQueues(context.app), has_created=has_created)


def bound(host: str, port: int) -> socket.socket:
    """A socket of our own, so that a port that is taken is a message and not a traceback."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


VERBS: tuple[click.Command, ...] = (serve,)
