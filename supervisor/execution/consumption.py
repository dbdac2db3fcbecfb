"""Queues as jobs and workers see them: who goes there, who consumes, what lies there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from supervisor.job.spec import JobSpec
from supervisor.ledger.presence import Roll


class Queues(Protocol):
    """The queues of a broker: those of a job, and their lengths as far as they can be told."""

    def of(self, spec: JobSpec) -> tuple[str, ...]: ...

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """`length`: messages that wait in it; None when nobody could tell. jobs: those that go there.

    drained_at: since when nothing begins from it.
    """

    name: str
    length: int | None
    consumers: int
    is_serial: bool
    jobs: tuple[str, ...] = ()
    drained_at: datetime | None = None


def queues(
    specs: Iterable[JobSpec], roll: Roll, broker: Queues, drained: Mapping[str, datetime]
) -> list[Queue]:
    """Those that jobs go to, those that workers consume, and those that are drained."""
    serial: set[str] = set()
    jobs: dict[str, list[str]] = defaultdict(list)
    for spec in specs:
        for queue in broker.of(spec):
            jobs[queue].append(spec.name)
        if spec.serial_queue:
            serial.add(spec.serial_queue)
    consumed = {queue for worker in roll.workers for queue in worker.queues}
    names = sorted(jobs.keys() | consumed | drained.keys())
    lengths = broker.lengths(names) if names else {}
    return [
        Queue(
            *(name, lengths.get(name), roll.consumers(name), name in serial),
            jobs=tuple(jobs.get(name, ())),
            drained_at=drained.get(name),
        )
        for name in names
    ]
