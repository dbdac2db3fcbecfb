"""Which processes are there: each worker and each beat reports itself every few seconds.

1. One call writes the process' facts, for `PRESENCE_TTL`, and when it was last seen.
2. A process that stops removes both. Of one that was killed the first expires, and the second stays
   for `LAST_SEEN_KEPT`: it was there, and is missing.
3. The reply has the server's time. How far the process' own clock is off goes with its next call.
4. The names of the tasks that a worker knows are written once for all workers that know the same;
   the call keeps them alive, and says when they are gone.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from supervisor.ledger.functions import SCHEMA, Functions
from supervisor.ledger.replies import instant
from supervisor.store.connection import Client
from supervisor.store.keys import Keys
from supervisor.times import to_ms

PRESENCE_INTERVAL = timedelta(seconds=5)
PRESENCE_TTL = timedelta(seconds=15)
LAST_SEEN_KEPT = timedelta(minutes=15)
TASKS_TTL = timedelta(minutes=1)

#: A reply that was on its way for longer says little about the clocks.
PROMPT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Broker:
    """What a process knows of its app's broker: where jobs without a queue go, and whether the
    ledger is on the same database."""

    default_queue: str
    is_ledger: bool


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """`queues`: those it consumes now. tasks: digest of the names of those that it knows.

    pool: as Celery calls it.
    """

    name: str
    queues: tuple[str, ...]
    pool_size: int
    tasks: str
    pool: str = "prefork"


@dataclass(frozen=True, slots=True)
class BeatFacts:
    """`follows`: digest of the schedule files it has loaded, if it has any."""

    name: str
    leads: bool
    follows: str | None


@dataclass(frozen=True, slots=True)
class Present:
    """A process that is there. clock_offset: of its clock, ahead of the server's. fault: why it
    does not do its work. is_waiting: for its broker, and consumes nothing meanwhile."""

    facts: WorkerFacts | BeatFacts
    host: str
    pid: int
    started_at: datetime
    last_seen_at: datetime
    clock_offset: timedelta | None
    broker: Broker
    fault: str | None = None
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class Processes:
    """`last_seen`: of workers by name, also of those that were killed."""

    present: tuple[Present, ...]
    last_seen: Mapping[str, datetime]

    @property
    def workers(self) -> list[WorkerFacts]:
        return [p.facts for p in self.present if isinstance(p.facts, WorkerFacts)]

    @property
    def beats(self) -> list[BeatFacts]:
        return [p.facts for p in self.present if isinstance(p.facts, BeatFacts)]

    def consumers(self, queue: str) -> int:
        return sum(queue in worker.queues for worker in self.workers)


class Registration:
    """One process' own entry; `client` is its own, too."""

    def __init__(self, client: Client, keys: Keys, broker: Broker) -> None:
        self._client = client
        self._keys = keys
        self._functions = Functions(client, keys)
        self._id = uuid4().hex
        self._last: WorkerFacts | BeatFacts | None = None
        self._offset: float | None = None
        self._facts = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
            "broker": asdict(broker),
        }

    def say(
        self,
        facts: WorkerFacts | BeatFacts,
        tasks: Iterable[str] = (),
        fault: str | None = None,
        *,
        is_waiting: bool = False,
    ) -> None:
        """`tasks`: the names behind the digest in the facts of a worker. fault: why the process
        does not do its work. is_waiting: for its broker.

        Raises WrongSchema when another version of this code writes the ledger.
        """
        self._last, sent = facts, time.time()
        self._facts |= {"fault": fault, "is_waiting": is_waiting}
        seconds, microseconds, knows_tasks = self._call(facts, PRESENCE_TTL)
        on_its_way = time.time() - sent
        if self._offset is None or on_its_way < PROMPT_SECONDS:
            self._offset = sent + on_its_way / 2 - int(seconds) - int(microseconds) / 1e6
        if isinstance(facts, WorkerFacts) and not knows_tasks:
            key = self._keys.tasks(facts.tasks)
            self._client.set(key, json.dumps(sorted(tasks)), px=to_ms(TASKS_TTL))

    def leave(self) -> None:
        if self._last is not None:
            self._call(self._last, timedelta())

    def _call(self, facts: WorkerFacts | BeatFacts, ttl: timedelta) -> Any:
        kind = KINDS[type(facts)]
        said = {**self._facts, "kind": kind, "offset": self._offset, "facts": asdict(facts)}
        tasks = facts.tasks if isinstance(facts, WorkerFacts) else ""
        keys = self._keys
        return self._functions(
            "present",
            f"{kind}|{self._id}|{facts.name}",
            json.dumps(said, ensure_ascii=False),  # a name is a label of metrics, which are UTF-8
            to_ms(ttl),
            to_ms(LAST_SEEN_KEPT),
            to_ms(TASKS_TTL),
            SCHEMA,
            keys=(keys.presence(self._id), keys.present, keys.tasks(tasks), keys.schema),
        )


KINDS: Mapping[type[WorkerFacts] | type[BeatFacts], str] = {
    WorkerFacts: "worker",
    BeatFacts: "beat",
}


class Presences:
    """The reader's side."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def processes(self) -> Processes:
        """Two round trips."""
        index: list[tuple[str, float]] = self._client.zrange(
            self._keys.present, 0, -1, withscores=True
        )
        if not index:
            return Processes((), {})
        ids = [member.split("|")[1] for member, _ in index]
        texts = self._client.mget([self._keys.presence(process) for process in ids])
        last_seen = {}
        for member, seen in index:  # in the order of time: the last one of a name holds
            kind, _, name = member.split("|", 2)
            if kind == "worker":
                last_seen[name] = instant(seen)
        found = (
            present_from(json.loads(text), instant(seen))
            for text, (_, seen) in zip(texts, index, strict=True)
            if text
        )
        return Processes(tuple(sorted(found, key=lambda present: present.facts.name)), last_seen)

    def tasks(self, workers: Sequence[WorkerFacts]) -> frozenset[str]:
        """The names of the tasks that any of the workers knows."""
        digests = sorted({worker.tasks for worker in workers})
        texts = self._client.mget([self._keys.tasks(d) for d in digests]) if digests else []
        return frozenset(name for text in texts if text for name in json.loads(text))


#: They pass over what a process of a newer version adds.
FACTS: Mapping[str, TypeAdapter[Any]] = {
    "worker": TypeAdapter(WorkerFacts),
    "beat": TypeAdapter(BeatFacts),
}
PRESENT = TypeAdapter(Present)


def present_from(said: Mapping[str, Any], last_seen_at: datetime) -> Present:
    found = {
        **said,
        "facts": FACTS[said["kind"]].validate_python(said["facts"]),
        "started_at": said["started"],
        "last_seen_at": last_seen_at,
        "clock_offset": said["offset"],
    }
    return PRESENT.validate_python(found)


def digest_of(tasks: Iterable[str]) -> str:
    return sha256("\n".join(sorted(tasks)).encode()).hexdigest()[:16]
