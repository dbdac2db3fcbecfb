"""Queues, the workers that consume them, and what runs in those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.job.run import Run
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import running_runs
from supervisor.ledger.presence import Processes, WorkerProcess
from supervisor.ledger.queues import LedgerQueues, Queue, Queues, queues
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
    broker = broker or LedgerQueues(ledger.client, processes)
    running: dict[str, list[Run]] = defaultdict(list)
    count, longest = running_runs(ledger, MOST_RUNNING)
    for run in longest:
        if run.worker:
            running[run.worker].append(run)
    return QueueStatus(
        queues(specs.values(), processes, broker, ledger.drains.since()),
        list(workers_of(processes)),
        dict(sorted(running.items())),
        count,
        count - len(longest),
    )


def queues_of(ledger: Ledger, broker: Queues | None, specs: Iterable[JobSpec]) -> list[Queue]:
    """The queues that these jobs go to, that workers consume, or that are drained."""
    processes = ledger.presences.processes()
    broker = broker or LedgerQueues(ledger.client, processes)
    return queues(specs, processes, broker, ledger.drains.since())


def troubles_of(ledger: Ledger, broker: Queues | None) -> Iterable[str]:
    """Why queued runs do not begin."""
    for queue in queues_of(ledger, broker, ledger.scheduled().values()):
        if queue.drained_at:
            yield f"The queue {queue.name} is drained: nothing begins from it."
        elif queue.jobs and not queue.consumers:
            start = f"celery -A proj worker -Q {queue.name}" + " -c 1" * queue.is_serial
            yield (
                f"No worker consumes the queue {queue.name}: what is sent there does not begin."
                f" Start one: `{start}`"
            )
        elif queue.is_serial and queue.consumers > 1:
            yield f"{queue.consumers} workers consume the serial queue {queue.name}: one too many."


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
