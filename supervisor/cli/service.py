"""Verbs that run the service: up, serve, token, health."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TextIO, cast

import click

from supervisor.cli.common import (
    PORT,
    Context,
    examples,
    json_option,
    option_group,
    pass_context,
    print_done,
    print_json,
    schedules_option,
)
from supervisor.errors import NotConfigured

if TYPE_CHECKING:
    from supervisor.ledger.ledger import Ledger
    from supervisor.ledger.queues import Queues
    from supervisor.web.access import Access
    from supervisor.web.record import RecordLog

# health


@click.command(epilog=examples("health beat", "health worker --name default@%h", "health serve"))
@click.argument("what", type=click.Choice(["beat", "worker", "serve"]))
@click.option("--name", help="Name of the worker, as given to celery -n: default@%h.")
@click.option("--port", type=PORT, default=9809, show_default=True, help="Port of the server.")
@json_option
@pass_context
def health(context: Context, what: str, name: str | None, port: int, as_json: bool) -> None:
    """Check if this host's beat, worker or server is healthy.

    For liveness probes: exits 0 if healthy and 1 if not, after one request to Redis, or to the
    server on this host. A beat on standby is healthy, and so is a worker that waits for its broker.
    A worker is not healthy if it consumes no queue, or if its main loop has been stuck for a
    minute. While Redis is unavailable or refuses writes, all processes count as healthy.
    """
    from redis.exceptions import RedisError

    from supervisor.operate.health import fault_of, fault_of_server

    if (what == "worker") != (name is not None):
        raise click.UsageError("a worker needs --name; beat and serve do not take it")
    is_known = True
    if what == "serve":
        fault = fault_of_server(port)
    else:
        try:
            ledger = ledger_of(context)
            fault = fault_of(what, name, ledger.presences.processes().present)
            if fault and (refusal := ledger.refusal()):  # nothing can report, nor do better
                fault, is_known = f"unknown: {refusal}", False
        except (RedisError, OSError) as error:
            fault, is_known = f"unknown: the ledger is unavailable ({error})", False
    if as_json:
        healthy = fault is None if is_known else None
        print_json({"process": what, "name": name, "healthy": healthy, "fault": fault})
    else:
        click.echo(fault or "fine")
    if fault and is_known:
        sys.exit(1)


def ledger_of(context: Context) -> Ledger:
    """The app is not imported if the environment has the URL: a probe should be cheap."""
    from supervisor.ledger.ledger import Ledger

    return Ledger.open(context.settings) if context.given_url else context.ledger


# serve


METRIC_LABELS = "SUPERVISOR_METRIC_LABELS"

LOG_LEVELS = ("debug", "info", "warning", "error", "critical", "fatal")

#: How the HTTP server listens, and what is logged.
listening = option_group(
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=PORT, default=9809, show_default=True, help="Port to listen on."),
    click.option(
        "--proxied",
        is_flag=True,
        help="Behind a proxy: accept any Host header, and refuse requests with neither a token nor "
        "a name from the proxy.",
    ),
    click.option(
        "--loglevel",
        "log_level",
        type=click.Choice(LOG_LEVELS, case_sensitive=False),
        default="info",
        show_default=True,
        help="Log from this level on.",
    ),
)


@click.command(epilog=examples("-A proj serve", "-A proj serve --host 0.0.0.0 --proxied"))
@listening
@pass_context
def serve(
    context: Context,
    host: str,
    port: int,
    proxied: bool,
    log_level: str,
) -> None:
    """Serve the status page, the HTTP API, metrics and health checks.

    At /, /api/v1, /metrics, /healthz and /readyz. For actions, and to listen on any address but a
    loopback one, a token is needed: SUPERVISOR_TOKEN, or one in the file that
    SUPERVISOR_ACCESS_FILE names.
    """
    import uvicorn

    from supervisor import logs, process
    from supervisor.lists.commands import BACKGROUND
    from supervisor.settings import INSTALLATION
    from supervisor.web.budget import ledger_for_answers
    from supervisor.web.metrics import Metrics, label_names
    from supervisor.web.server import create

    logs.configure(level=log_level)
    access = access_at(host, proxied=proxied)
    labels = label_names(os.environ.get(METRIC_LABELS, ""))
    listener = bound(host, port)
    process.collect_rarely()
    broker = broker_of(context)

    def is_stopping() -> bool:
        return server.should_exit

    settings = context.effective_settings
    ledger = ledger_for_answers(settings)
    metrics = Metrics(ledger, broker, labels=labels, access_file=access.file)
    for start in BACKGROUND:
        start(ledger, settings)
    name = os.environ.get(INSTALLATION, "")
    app = create(ledger, access, metrics, broker, context.app, name)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=not access.is_local,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    server = uvicorn.Server(config)
    record = record_log(ledger, access)
    Thread(target=record.follow, args=(is_stopping,), name="record-log", daemon=True).start()
    with suppress(KeyboardInterrupt):  # which uvicorn raises again when it has ended
        server.run(sockets=[listener])


def record_log(ledger: Ledger, access: Access) -> RecordLog:
    """A server without actions may use a Redis user that only reads."""
    from supervisor.web.record import RecordLog

    return RecordLog(ledger, may_write=access.has_actions)


def access_at(host: str, *, proxied: bool) -> Access:
    """Raises NotConfigured and AccessFileInvalid."""
    from supervisor.settings import ACCESS_FILE, ROOT_PATH, TOKEN
    from supervisor.web.access import Access
    from supervisor.web.access_file import AccessFile

    named = os.environ.get(ACCESS_FILE)
    return Access.of(
        host,
        os.environ.get(TOKEN) or None,
        is_proxied=proxied,
        file=AccessFile(Path(named)) if named else None,
        prefix=os.environ.get(ROOT_PATH, ""),
    )


def broker_of(context: Context) -> Queues | None:
    """The app's broker, if an app was named."""
    from supervisor.web.budget import BoundedQueues

    if context.app is None:
        return None
    from supervisor.sending.queues import AppQueues

    return BoundedQueues(AppQueues(context.app))


def bound(host: str, port: int) -> socket.socket:
    """Binds the socket here, so that a port in use is a message and not a traceback."""
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


# token


@click.group()
def token() -> None:
    """Make tokens for the users of the page and the API."""


@token.command("new", epilog=examples("token new ann --role operator"))
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "editor"]),
    default="viewer",
    show_default=True,
    help="What the token allows.",
)
@json_option
def new(name: str, role: str, as_json: bool) -> None:
    """Print a new token, and its line for the access file.

    The token is stored nowhere. NAME says in the record of actions whose it is.
    """
    from supervisor.web.access_file import Role, is_name, line_for, new_token

    if not is_name(name):
        what = "a name has letters, digits and _ . @ - only, and a letter or digit first"
        raise click.BadParameter(what)
    made = new_token()
    line = line_for(made, name, Role(role))
    if as_json:
        print_done("token new", [{"name": name, "state": "made", "token": made, "line": line}])
        return
    click.echo(f"the token, which is not shown again:\n\n  {made}\n")
    click.echo("its line, below `tokens:` in the file that SUPERVISOR_ACCESS_FILE names:\n")
    click.echo(f"  {line}")


# up


@click.command(
    epilog=examples(
        "-A proj up",
        "-A proj up --port 9000 --concurrency 2",
        "-A proj --redis-url redis://127.0.0.1:6379/0 up",
    ),
)
@schedules_option
@listening
@click.option("--concurrency", "-c", type=int, help="Processes of the default worker.")
@click.option("--serve/--no-serve", default=True, help="Also serve the page and /metrics.")
@pass_context
def up(
    context: Context,
    schedules: Path | None,
    host: str,
    port: int,
    proxied: bool,
    concurrency: int | None,
    log_level: str,
    serve: bool,
) -> None:
    """Run Redis, beat, workers and the status page until Ctrl-C.

    In the foreground, for development and small set-ups. Name the Celery app with -A. With a
    --redis-url, that Redis is used in place of an embedded one.
    """
    from supervisor import logs
    from supervisor.deploy.screen import Lines, Screen
    from supervisor.deploy.up import Up, UpOptions
    from supervisor.settings import Settings
    from supervisor.store.connection import connect

    # Once here, and not by five children that exit. (context.app is loaded for its errors.)
    if context.app_name is None or context.app is None:
        raise NotConfigured(
            "name the Celery app: supervisor -A proj up"
            " (in an empty folder, supervisor init writes one)"
        )
    if url := context.given_url:
        connect(Settings(redis_url=url)).close()
    if serve:
        # Mistakes that would end the HTTP server again and again.
        access_at(host, proxied=proxied)
        bound(host, port).close()
    screen = None
    if not logs.wants_json():
        colour = click.get_current_context().color
        screen = Screen(sys.stderr, colour=colour, is_chatty=log_level == "debug")
    logs.configure(
        json=True, level=log_level, stream=cast("TextIO", Lines(screen, "up")) if screen else None
    )
    Up(
        UpOptions(
            app=context.app_name,
            schedules=context.schedules(schedules),
            topology=context.topology,
            redis_url=context.given_url,
            host=host,
            port=port,
            proxied=proxied,
            concurrency=concurrency,
            log_level=log_level,
            serve=serve,
            prefix=context.effective_settings.prefix,
        ),
        os.environ,
        screen,
    ).run()
