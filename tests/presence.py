"""Workers and beats that say that they are there, without being so."""

from __future__ import annotations

from typing import Any

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import BeatProcess, Broker, Registration, WorkerProcess, digest_of


def worker_is_there(
    ledger: Ledger,
    name: str,
    queues: tuple[str, ...] = ("celery",),
    tasks: tuple[str, ...] = ("proj.nightly",),
    *,
    is_ledger: bool = True,
) -> Registration:
    registration = Registration(ledger, Broker("celery", is_ledger))
    for _ in range(2):  # what it says of its clock is of the call before
        registration.say(WorkerProcess(name, queues, 2, digest_of(tasks)), tasks)
    return registration


def beat_is_there(ledger: Ledger, name: str, *, leads: bool) -> Registration:
    registration = Registration(ledger, Broker("celery", True))
    for _ in range(2):
        registration.say(BeatProcess(name, leads))
    return registration


def beat_says(ledger: Ledger, **fields: Any) -> None:
    """As if the beat that leads had written this into the ledger."""
    ledger.client.hset(ledger.keys.beat, mapping=fields)
