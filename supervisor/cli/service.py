"""Verbs that run and operate the service: up, serve, token, queues, drain, undrain, health."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TextIO, cast

import click

from supervisor.cli.common import (
    PORT,
    Context,
    DurationType,
    examples,
    json_option,
    option_group,
    pass_context,
    print_done,
    print_json,
    reason_option,
    schedules_option,
)
from supervisor.errors import NotConfigured, NotFound, did_you_mean

if TYPE_CHECKING:
    from supervisor.job.topology import WorkerSpec
    from supervisor.ledger.ledger import Ledger
    from supervisor.ledger.presence import Present
    from supervisor.ledger.queues import Queues
    from supervisor.settings import Settings
    from supervisor.web.access import Access
    from supervisor.web.record import RecordLog

# drain, undrain


POLL_SECONDS = 0.4

#: Up to this many running runs are listed by name.
MOST_LISTED = 5


@click.command(epilog=examples("drain serial.import --wait 10m --reason 'database upgrade'"))
@click.argument("queue")
@click.option(
    "--wait",
    "wait",
    type=DurationType(),
    help="Wait up to this long (30s, 10m) for running runs; exit 1 if any are left.",
)
@click.option("--force", is_flag=True, help="Accept a queue that no job and no worker uses.")
@reason_option
@json_option
@pass_context
def drain(
    context: Context,
    queue: str,
    wait: timedelta | None,
    force: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Start no more runs from a queue.

    Runs in progress finish, and due ones wait until `undrain`.
    """
    from supervisor.operate.shapes import iso_utc
    from supervisor.operate.words import stamp

    ledger = context.ledger
    with context.acting("drain", queue, reason) as action:
        if not force:
            check_known(ledger, queue)
        since = ledger.drains.drain(queue, action)
    click.echo(
        f"{queue} has been drained since {stamp(since)}: no more runs start from it", err=as_json
    )
    running = ledger.drains.running(queue)
    if wait is not None:
        deadline = time.monotonic() + wait.total_seconds()
        while running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            running = ledger.drains.running(queue)
    if as_json:
        facts = {"since": iso_utc(since), "running": list(running)}
        print_done("drain", [{"name": queue, "state": "drained", **facts}])
    else:
        click.echo(running_words(queue, running))
    if running and wait is not None:
        sys.exit(1)


@click.command(epilog=examples("undrain serial.import"))
@click.argument("queue")
@reason_option
@json_option
@pass_context
def undrain(context: Context, queue: str, reason: str, as_json: bool) -> None:
    """Start runs from a drained queue again."""
    from supervisor.ledger.actions import Action
    from supervisor.operate.shapes import iso_utc
    from supervisor.operate.words import stamp

    action = Action(context.actor, "undrain", queue, reason)
    since = context.ledger.drains.undrain(queue, action)
    if not since:
        check_known(context.ledger, queue)
    if as_json:
        result = {"name": queue, "state": "undrained", "drained_since": iso_utc(since)}
        print_done("undrain", [result])
        return
    was = f"it had been drained since {stamp(since)}" if since else "it was not drained"
    click.echo(f"runs start from {queue} again; {was}")


def check_known(ledger: Ledger, queue: str) -> None:
    """Raises NotFound."""
    from supervisor.ledger.queues import LedgerQueues
    from supervisor.ledger.queues import queues as queues_of

    processes = ledger.presences.processes()
    broker = LedgerQueues(ledger.client, processes)
    found = queues_of(ledger.specs().values(), processes, broker, ledger.drains.since())
    known = [one.name for one in found]
    if queue not in known:
        names = f"known: {', '.join(known)}" if known else "no queue is known"
        raise NotFound(
            f"unknown queue {queue!r}{did_you_mean(queue, known)}: no worker consumes it and no job"
            f" goes to it; {names}"
        )


def running_words(queue: str, run_ids: Sequence[str]) -> str:
    if not run_ids:
        return f"no run of {queue} is running"
    named = ", ".join(run_ids[:MOST_LISTED])
    more = f" and {len(run_ids) - MOST_LISTED} more" if len(run_ids) > MOST_LISTED else ""
    return f"{len(run_ids)} still running: {named}{more}"


# health


TIMEOUT_SECONDS = 5


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

    if (what == "worker") != (name is not None):
        raise click.UsageError("a worker needs --name; beat and serve do not take it")
    known = True
    if what == "serve":
        fault = fault_of_server(port)
    else:
        try:
            ledger = ledger_of(context)
            fault = fault_of(what, name, ledger.presences.processes().present)
            if fault and (refusal := ledger.refusal()):  # nothing can report, nor do better
                fault, known = f"unknown: {refusal}", False
        except (RedisError, OSError) as error:
            fault, known = f"unknown: the ledger is unavailable ({error})", False
    if as_json:
        healthy = fault is None if known else None
        print_json({"process": what, "name": name, "healthy": healthy, "fault": fault})
    else:
        click.echo(fault or "fine")
    if fault and known:
        sys.exit(1)


def ledger_of(context: Context) -> Ledger:
    """The app is not imported if the environment has the URL: a probe should be cheap."""
    from supervisor.ledger.ledger import Ledger

    return Ledger.open(context.settings) if context.given_url else context.ledger


def fault_of(what: str, name: str | None, there: Iterable[Present]) -> str | None:
    from supervisor.ledger.presence import BeatFacts, WorkerFacts

    host = socket.gethostname()
    if what == "beat":
        here = any(isinstance(p.facts, BeatFacts) and p.host == host for p in there)
        return None if here else f"no beat on {host} has reported"
    full = with_host(name or "", host)
    workers = [
        (p, p.facts) for p in there if isinstance(p.facts, WorkerFacts) and p.facts.name == full
    ]
    if not workers:
        return f"worker {full} has not reported"
    if all(present.fault for present, _ in workers):
        return f"worker {full} does no work: {workers[0][0].fault}"
    if not any(present.is_waiting or worker.queues for present, worker in workers):
        return f"worker {full} consumes no queue"
    return None


def with_host(name: str, host: str) -> str:
    """The name with parts of the host's, as in celery -n: %h all, %n the first, %d the rest."""
    first, _, rest = host.partition(".")
    named = name if "@" in name else f"{name}@%h"
    for mark, value in (("%h", host), ("%n", first), ("%d", rest)):
        named = named.replace(mark, value)
    return named


def fault_of_server(port: int) -> str | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"nothing answers on port {port}: {error}"
    finally:
        connection.close()
    return None if status == 200 else f"port {port} answers {status}"


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

    At /, /api/v1, /metrics, /healthz and /readyz. Actions, and listening on any address but a
    loopback one, take a token: SUPERVISOR_TOKEN, or one in the file that SUPERVISOR_ACCESS_FILE
    names.
    """
    import uvicorn

    from supervisor import logs, process
    from supervisor.settings import INSTALLATION
    from supervisor.web.http import ledger_for_answers
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
    watch_for_outages(ledger, settings)
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


def watch_for_outages(ledger: Ledger, settings: Settings) -> None:
    """Starts the watch if notices have destinations. Raises NotConfigured."""
    from supervisor.features.notices.rules import service_destinations
    from supervisor.settings import PAGE_URL
    from supervisor.times import duration_in
    from supervisor.web.outages import GRACE, NOTIFY_AFTER, Outbox, name_of, watch

    destinations = service_destinations(os.environ)
    grace = duration_in(os.environ, NOTIFY_AFTER, GRACE)
    if destinations:
        outbox = Outbox(destinations, os.environ.get(PAGE_URL, ""))
        arguments = (ledger, name_of(settings), outbox, grace)
        Thread(target=watch, args=arguments, name="supervisor-outages", daemon=True).start()


def broker_of(context: Context) -> Queues | None:
    """The app's broker, if an app was named."""
    from supervisor.web.http import BoundedQueues

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


# up, queues


@click.command(
    epilog=examples(
        "-A proj up",
        "-A proj up --port 9000 --concurrency 2",
        "-A proj up --redis-url redis://127.0.0.1:6379/0",
    ),
)
@schedules_option
@click.option("--redis-url", help="Use this Redis instead of an embedded one.")
@listening
@click.option("--concurrency", "-c", type=int, help="Processes of the default worker.")
@click.option("--serve/--no-serve", default=True, help="Also serve the page and /metrics.")
@pass_context
def up(
    context: Context,
    schedules: Path | None,
    redis_url: str | None,
    host: str,
    port: int,
    proxied: bool,
    concurrency: int | None,
    log_level: str,
    serve: bool,
) -> None:
    """Run Redis, beat, workers and the status page until Ctrl-C.

    In the foreground, for development and small set-ups. Name the Celery app with -A.
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
    if url := redis_url or context.given_url:
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
            default_queue=context.default_queue,
            redis_url=redis_url or context.given_url,
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


@click.command(epilog=examples("-A proj queues"))
@schedules_option
@json_option
@pass_context
def queues(context: Context, schedules: Path | None, as_json: bool) -> None:
    """List the queues, with the command that starts each worker.

    With the app (-A), jobs that it cannot run are left out, and named on stderr.
    """
    from supervisor.catalog.schedule_files import load
    from supervisor.job.topology import Topology

    app = context.app_name or "proj"
    specs = load(context.schedules(schedules), prefix=context.prefix).specs
    if context.app is not None:
        from supervisor.app import tasks_of

        tasks = tasks_of(context.app)
        faults = [(name, f.text) for name, spec in specs.items() for f in tasks.faults(spec)]
        for name, text in faults:
            click.echo(f"note: job {name!r}: {text}", err=True)
        specs = {name: spec for name, spec in specs.items() if name not in dict(faults)}
    workers = Topology.of(specs.values(), context.default_queue).workers
    if as_json:
        print_json([described(worker, app) for worker in workers])
        return
    for worker in workers:
        kind = "one run at a time" if worker.serial else "default worker"
        click.echo(f"{', '.join(worker.queues)}  ({kind})")
        click.echo(f"  jobs    {', '.join(worker.jobs) or 'none'}")
        click.echo(f"  worker  {shlex.join(worker.command(app))}")


def described(worker: WorkerSpec, app: str) -> dict[str, object]:
    return {
        "worker": worker.name,
        "queues": worker.queues,
        "jobs": worker.jobs,
        "serial": worker.serial,
        "command": worker.command(app),
    }
