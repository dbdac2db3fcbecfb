"""Which processes are there: each worker and each beat reports itself every few seconds.

1. One call writes what the process says of itself, for `PRESENCE_TTL`, and when it was last seen.
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
from typing import Any, ClassVar
from uuid import uuid4

from pydantic import TypeAdapter

from supervisor.ledger.functions import document
from supervisor.ledger.reader import Reader
from supervisor.times import instant, to_ms

PRESENCE_INTERVAL = timedelta(seconds=5)
PRESENCE_TTL = timedelta(seconds=15)
LAST_SEEN_KEPT = timedelta(minutes=15)
TASKS_TTL = timedelta(minutes=1)

#: A reply that was on its way for longer says little about the clocks.
PROMPT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Broker:
    """What a process knows of its app's broker."""

    default_queue: str
    """Where jobs without a queue go."""

    is_ledger: bool
    """The ledger is on the same database."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What a worker says of itself."""

    KIND: ClassVar = "worker"

    name: str
    queues: tuple[str, ...]
    """Those that it consumes now."""

    pool_size: int
    tasks: str
    """Digest of the names of those that it knows."""

    pool: str = "prefork"
    """As Celery calls it."""


@dataclass(frozen=True, slots=True)
class BeatProcess:
    """What a beat says of itself."""

    KIND: ClassVar = "beat"

    name: str
    leads: bool


@dataclass(frozen=True, slots=True)
class Present:
    """A process that is there."""

    process: WorkerProcess | BeatProcess
    host: str
    pid: int
    started_at: datetime
    last_seen_at: datetime
    clock_offset: timedelta | None
    """Of its clock, ahead of the server's."""

    broker: Broker
    fault: str | None = None
    """Why it does not do its work."""

    is_waiting: bool = False
    """For its broker: it consumes nothing meanwhile."""


#: It passes over what a process of a newer version adds.
PRESENT = TypeAdapter(Present)


@dataclass(frozen=True, slots=True)
class Processes:
    """The workers and beats of an app."""

    present: tuple[Present, ...]
    last_seen: Mapping[str, datetime]
    """Of workers by name, also of those that were killed."""

    @property
    def workers(self) -> list[WorkerProcess]:
        return [p.process for p in self.present if isinstance(p.process, WorkerProcess)]

    @property
    def beats(self) -> list[BeatProcess]:
        return [p.process for p in self.present if isinstance(p.process, BeatProcess)]

    def consumers(self, queue: str) -> int:
        return sum(queue in worker.queues for worker in self.workers)


class Registration:
    """One process' own entry."""

    def __init__(self, ledger: Reader, broker: Broker) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._functions = ledger.functions
        self._id = uuid4().hex
        self._last: WorkerProcess | BeatProcess | None = None
        self._record: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": time.time(),
            "clock_offset": None,
            "broker": asdict(broker),
        }

    def say(
        self,
        process: WorkerProcess | BeatProcess,
        tasks: Iterable[str] = (),
        fault: str | None = None,
        *,
        is_waiting: bool = False,
    ) -> None:
        """`tasks`: the names behind the digest of a worker. fault and is_waiting: as of Present.

        Raises WrongSchema when another version of this code writes the ledger.
        """
        self._last, sent = process, time.time()
        self._record |= {"process": asdict(process), "fault": fault, "is_waiting": is_waiting}
        digest = process.tasks if isinstance(process, WorkerProcess) else ""
        call = {
            "id": self._id,
            "member": self._member(process),
            "record": document(self._record),
            "ttl": to_ms(PRESENCE_TTL),
            "last_seen_kept": to_ms(LAST_SEEN_KEPT),
            "tasks": digest,
            "tasks_ttl": to_ms(TASKS_TTL),
        }
        seconds, microseconds, knows_tasks = self._functions("present", document(call))
        on_its_way = time.time() - sent
        if self._record["clock_offset"] is None or on_its_way < PROMPT_SECONDS:
            at = int(seconds) + int(microseconds) / 1e6
            self._record["clock_offset"] = sent + on_its_way / 2 - at
        if digest and not knows_tasks:
            self._client.set(
                self._keys.tasks(digest), json.dumps(sorted(tasks)), px=to_ms(TASKS_TTL)
            )

    def leave(self) -> None:
        """Also from a ledger that another version writes by now."""
        if self._last is not None:
            self._client.delete(self._keys.presence(self._id))
            self._client.zrem(self._keys.present, self._member(self._last))

    def _member(self, process: WorkerProcess | BeatProcess) -> str:
        return f"{process.KIND}|{self._id}|{process.name}"


class Presences:
    """The reader's side."""

    def __init__(self, ledger: Reader) -> None:
        self._client = ledger.client
        self._keys = ledger.keys

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
            if kind == WorkerProcess.KIND:
                last_seen[name] = instant(seen)
        there = (
            PRESENT.validate_python({**json.loads(text), "last_seen_at": instant(seen)})
            for text, (_, seen) in zip(texts, index, strict=True)
            if text
        )
        return Processes(tuple(sorted(there, key=lambda present: present.process.name)), last_seen)

    def tasks(self, workers: Sequence[WorkerProcess]) -> frozenset[str]:
        """The names of the tasks that any of the workers knows."""
        digests = sorted({worker.tasks for worker in workers})
        texts = self._client.mget([self._keys.tasks(d) for d in digests]) if digests else []
        return frozenset(name for text in texts if text for name in json.loads(text))


def digest_of(tasks: Iterable[str]) -> str:
    return sha256("\n".join(sorted(tasks)).encode()).hexdigest()[:16]
