"""The queues of a broker that is the ledger's own server, for processes without the app."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.job.topology import DEFAULT_QUEUE, Destinations, Part, destinations_by_name
from supervisor.ledger.actions import Action, entry_of
from supervisor.ledger.presence import Processes
from supervisor.ledger.reader import Reader
from supervisor.store.connection import Client
from supervisor.times import instant, optional_instant

K = TypeVar("K")

#: What kombu appends to a queue's name for its lists of other priorities, by default.
PRIORITIES = ("", "\x06\x163", "\x06\x166", "\x06\x169")


class LedgerQueues:
    """The queues as the workers and beats of `processes` report them, which know their app."""

    def __init__(self, client: Client, processes: Processes) -> None:
        brokers = [present.broker for present in processes.present]
        self._client = client
        self._is_broker = bool(brokers) and all(broker.is_ledger for broker in brokers)
        self._default = brokers[0].default_queue if brokers else DEFAULT_QUEUE

    def of(self, spec: JobSpec) -> Destinations:
        return destinations_by_name(spec, self._default)

    def lengths(self, queues: Sequence[str]) -> dict[str, int]:
        """Empty when the messages are elsewhere, or no process is there that knows."""
        if not self._is_broker:
            return {}
        lists = {queue: [queue + priority for priority in PRIORITIES] for queue in queues}
        return lengths_of(self._client, lists)


def lengths_of(client: Any, lists: Mapping[K, Sequence[str]]) -> dict[K, int]:
    """The length of each queue, which has a list in Redis for each priority; one round trip."""
    with client.pipeline(transaction=False) as pipe:
        for key in chain.from_iterable(lists.values()):
            pipe.llen(key)
        lengths = iter(pipe.execute())
    return {queue: sum(islice(lengths, len(keys))) for queue, keys in lists.items()}


# Queues as jobs and workers see them: their jobs, their consumers, and how many messages wait.


class Queues(Protocol):
    """The queues of a broker: those of a job, and their lengths as far as they are known."""

    def of(self, spec: JobSpec) -> Destinations: ...

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the broker."""

    name: str
    length: int | None
    """How many messages wait in it; None when that is not known."""

    consumers: int
    is_serial: bool
    jobs: tuple[str, ...] = ()
    """Those that go there."""

    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    """Of each of these jobs, what goes there: itself, or some of its steps."""

    drained_at: datetime | None = None
    """Since when nothing begins from it."""


def queues(
    specs: Iterable[JobSpec], processes: Processes, broker: Queues, drained: Mapping[str, datetime]
) -> list[Queue]:
    """The queues that jobs go to, that workers consume, or that are drained."""
    serial: set[str] = set()
    jobs: dict[str, dict[str, Sequence[Part]]] = defaultdict(dict)
    for spec in specs:
        for queue, parts in broker.of(spec).items():
            jobs[queue][spec.name] = parts
        if spec.serial_queue:
            serial.add(spec.serial_queue)
    consumed = {queue for worker in processes.workers for queue in worker.queues}
    names = sorted(jobs.keys() | consumed | drained.keys())
    lengths = broker.lengths(names) if names else {}
    return [
        Queue(
            name,
            lengths.get(name),
            processes.consumers(name),
            name in serial,
            jobs=tuple(jobs.get(name, ())),
            parts=jobs.get(name, {}),
            drained_at=drained.get(name),
        )
        for name in names
    ]


# Queues that are drained: what runs goes on, nothing more begins, and nothing is lost.
#
# 1. A drained queue is a field of one hash. `begin` looks at it, in the function that gives the
#    lease: so it holds from the call that drains the queue on, and for workers that start
#    afterwards.
# 2. A run that is refused stays queued and keeps its lock. It is in the outbox without a time, and
#    is sent again when the queue goes on.
# 3. `start_deadline` does not count while a queue is drained: a queued run that reaches it is given
#    another one, and so is each at the end of the drain.


class Drains:
    def __init__(self, reads: Reader) -> None:
        self._reads = reads
        self._functions = reads.functions

    def drain(self, queue: str, action: Action | None = None) -> datetime:
        """Lets nothing more begin from the queue, and returns since when."""
        return instant(self._functions.act(entry_of(action), "drain", queue, 1))

    def undrain(self, queue: str, action: Action | None = None) -> datetime | None:
        """Lets it go on, and returns since when it had been drained; None if it had not."""
        return optional_instant(self._functions.act(entry_of(action), "drain", queue, 0))

    def since(self) -> dict[str, datetime]:
        """The drained queues, by name, and since when each of them is."""
        drained = self._reads.client.hgetall(self._reads.keys.drained)
        return {queue: instant(drained[queue]) for queue in sorted(drained)}

    def running(self, queue: str) -> list[str]:
        """Ids of running runs, steps and items of batches that began from the queue."""
        run_ids = self._reads.client.zrange(self._reads.keys.leases, 0, -1)
        replies = self._reads.read_fields(run_ids, "state", "queue")
        return [run_id for run_id, reply in replies if reply == [RunState.RUNNING.value, queue]]
