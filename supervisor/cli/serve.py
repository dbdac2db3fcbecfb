"""The verb that serves /metrics, health, the status page and the API."""

from __future__ import annotations

import os
import socket
from threading import Thread

import click
import uvicorn

from supervisor import garbage, logs
from supervisor.cli.context import Context, pass_context
from supervisor.cli.types import PORT
from supervisor.execution.consumption import Queues
from supervisor.settings import TOKEN
from supervisor.web.access import Access
from supervisor.web.budget import BoundedQueues, ledger_for_answers
from supervisor.web.metrics import Metrics
from supervisor.web.server import create

#: The name that Prometheus' own client for Python has for it.
NO_CREATED = "PROMETHEUS_DISABLE_CREATED_SERIES"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=PORT, default=9809, show_default=True)
@click.option("--proxied", is_flag=True, help="Behind a proxy: the token for all, under any name.")
@click.option("--loglevel", "log_level", default="info", show_default=True)
@pass_context
def serve(context: Context, host: str, port: int, proxied: bool, log_level: str) -> None:
    """Serve /metrics, /healthz, /readyz, the status page and /api/v1.

    Actions, and any address but a loopback one, need a token: SUPERVISOR_TOKEN.
    """
    logs.configure(level=log_level)
    access = access_at(host, proxied=proxied)
    listener = bound(host, port)
    garbage.collect_rarely()
    broker, ledger = broker_of(context), ledger_for_answers(context.effective_settings)
    metrics = Metrics(ledger, broker, has_created=has_created())
    Thread(target=metrics.scrape_first, name="first-scrape", daemon=True).start()
    config = uvicorn.Config(
        create(ledger, access, metrics, broker, lambda: server.should_exit),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listener])


def access_at(host: str, *, proxied: bool) -> Access:
    """Raises NotConfigured."""
    return Access.of(host, os.environ.get(TOKEN) or None, is_proxied=proxied)


def has_created() -> bool:
    return os.environ.get(NO_CREATED, "").lower() not in ("1", "true", "t")


def broker_of(context: Context) -> Queues | None:
    """The app's, where an app was named."""
    if context.app is None:
        return None
    from supervisor.sending.queues import AppQueues

    return BoundedQueues(AppQueues(context.app))


def bound(host: str, port: int) -> socket.socket:
    """A socket of our own, so that a port that is taken is a message and not a traceback."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror} (--port takes another)"
        ) from error
    return listener


VERBS: tuple[click.Command, ...] = (serve,)
