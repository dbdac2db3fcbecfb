"""Whether a beat, a worker or the HTTP server of this host is healthy, for probes."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException

from supervisor.ledger.presence import BeatProcess, Present, WorkerProcess

TIMEOUT_SECONDS = 5


def fault_of(what: str, name: str | None, there: Iterable[Present]) -> str | None:
    host = socket.gethostname()
    if what == "beat":
        here = any(isinstance(p.process, BeatProcess) and p.host == host for p in there)
        return None if here else f"no beat on {host} has reported"
    full = with_host(name or "", host)
    workers = [
        (p, p.process)
        for p in there
        if isinstance(p.process, WorkerProcess) and p.process.name == full
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
