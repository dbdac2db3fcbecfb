"""Queues, the workers that consume them, and what runs in those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.job.run import Run
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import running_runs
from supervisor.ledger.presence import Processes, WorkerProcess
from supervisor.ledger.queues import Queue, Queues
from supervisor.operate.shapes import Worker


@dataclass(frozen=True, slots=True)
class QueueStatus:
    queues: list[Queue]
    workers: list[Worker]

    running: Mapping[str, Sequence[Run]]
    """Runs by the process that they run in."""

    count: int

    more: int
    """How many are left out of `running`."""


#: Up to this many are shown with their processes.
MOST_RUNNING = 500


def queue_status(ledger: Ledger, broker: Queues | None) -> QueueStatus:
    specs, processes = ledger.specs(), ledger.presences.processes()
    running: dict[str, list[Run]] = defaultdict(list)
    count, longest = running_runs(ledger, MOST_RUNNING)
    for run in longest:
        if run.worker:
            running[run.worker].append(run)
    return QueueStatus(
        ledger.queues(specs.values(), broker, processes),
        list(workers_of(processes)),
        dict(sorted(running.items())),
        count,
        count - len(longest),
    )


def workers_of(processes: Processes) -> Iterable[Worker]:
    """The workers that are present, and those that vanished without signing off."""
    names = set()
    for present in processes.present:
        if isinstance(worker := present.process, WorkerProcess):
            names.add(worker.name)
            yield Worker(
                worker=worker.name,
                present=True,
                last_seen_at=present.last_seen_at,
                started_at=present.started_at,
                host=present.host,
                pid=present.pid,
                queues=list(worker.queues),
                processes=worker.pool_size,
            )
    for name in sorted(processes.last_seen.keys() - names):
        yield Worker(worker=name, present=False, last_seen_at=processes.last_seen[name])
