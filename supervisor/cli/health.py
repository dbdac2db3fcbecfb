"""The verb that probes ask: is this beat, this worker, this server doing its work?"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException

import click
from redis.exceptions import RedisError

from supervisor.cli.context import Context, pass_context
from supervisor.ledger.presence import BeatFacts, Present, WorkerFacts
from supervisor.ledger.runs import Ledger

PATIENCE_SECONDS = 5


@click.command()
@click.argument("what", type=click.Choice(["beat", "worker", "serve"]))
@click.option("--name", help="The worker's name as Celery was told: default@%h.")
@click.option("--port", default=9809, show_default=True, help="Of `supervisor serve`.")
@pass_context
def health(context: Context, what: str, name: str | None, port: int) -> None:
    """Exit 0 if this host's beat, worker or server does its work, 1 if not.

    For liveness probes: one question to Redis, or to the server here. A beat that stands by is
    fine, and so is a worker that waits for its broker; one that consumes no queue, or whose main
    loop has not turned for a minute, is not. With Redis unavailable no process is blamed for it.
    """
    if (what == "worker") != (name is not None):
        raise click.UsageError("--name is for workers, and a worker needs one")
    if what == "serve":
        fault = fault_of_server(port)
    else:
        try:
            fault = fault_of(what, name, present(context))
        except (RedisError, OSError) as error:
            click.echo(f"unknown: the ledger is away ({error})")
            return
    click.echo(fault or "fine")
    if fault:
        sys.exit(1)


def present(context: Context) -> Iterable[Present]:
    # The app is not imported where the environment says all: a probe is to be cheap.
    ledger = Ledger.open(context.settings) if context.given_url else context.ledger
    return ledger.presences.roll().present


def fault_of(what: str, name: str | None, there: Iterable[Present]) -> str | None:
    host = socket.gethostname()
    if what == "beat":
        here = any(isinstance(p.facts, BeatFacts) and p.host == host for p in there)
        return None if here else f"no beat on {host} has said that it is there"
    full = with_host(name or "", host)
    workers = [
        (p, p.facts) for p in there if isinstance(p.facts, WorkerFacts) and p.facts.name == full
    ]
    if not workers:
        return f"worker {full} has not said that it is there"
    if all(present.fault for present, _ in workers):
        return f"worker {full} does no work: {workers[0][0].fault}"
    if not any(present.is_waiting or worker.queues for present, worker in workers):
        return f"worker {full} consumes no queue"
    return None


def with_host(name: str, host: str) -> str:
    """As Celery's -n: %h is the host's name, %n its first part, %d the rest."""
    first, _, rest = host.partition(".")
    named = name if "@" in name else f"{name}@%h"
    for mark, value in (("%h", host), ("%n", first), ("%d", rest)):
        named = named.replace(mark, value)
    return named


def fault_of_server(port: int) -> str | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"nothing answers on port {port}: {error}"
    finally:
        connection.close()
    return None if status == 200 else f"port {port} answers {status}"


VERBS: tuple[click.Command, ...] = (health,)
