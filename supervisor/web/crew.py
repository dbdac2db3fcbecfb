"""The queues that jobs are sent to, the workers that consume them, and what they are at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from supervisor.execution.consumption import Queue, Queues, queues
from supervisor.ledger.glances import open_runs
from supervisor.ledger.presence import Present, Roll, WorkerFacts
from supervisor.ledger.queues import LedgerQueues
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import Run, RunState


@dataclass(frozen=True, slots=True)
class Worker:
    """`present` is None for one that has gone without a word."""

    name: str
    last_seen_at: datetime
    present: Present | None

    @property
    def facts(self) -> WorkerFacts | None:
        facts = self.present.facts if self.present else None
        return facts if isinstance(facts, WorkerFacts) else None


@dataclass(frozen=True, slots=True)
class Crew:
    """at_work: runs by the process that works on them."""

    queues: tuple[Queue, ...]
    workers: tuple[Worker, ...]
    at_work: Mapping[str, tuple[Run, ...]]


def crew_of(ledger: Ledger, broker: Queues | None) -> Crew:
    specs, roll = ledger.specs(), ledger.presences.roll()
    asked = broker or LedgerQueues(ledger.client, roll)
    return Crew(
        tuple(queues(specs.values(), roll, asked, ledger.drains.since())),
        tuple(workers_of(roll)),
        at_work(open_runs(ledger)),
    )


def troubles_of(ledger: Ledger, broker: Queues | None) -> Iterable[str]:
    """What keeps runs that are queued from beginning."""
    roll = ledger.presences.roll()
    asked = broker or LedgerQueues(ledger.client, roll)
    specs, drained = ledger.scheduled().values(), ledger.drains.since()
    for queue in queues(specs, roll, asked, drained):
        if queue.drained_at:
            yield f"The queue {queue.name} is drained: nothing begins from it."
        elif queue.jobs and not queue.consumers:
            yield f"No worker consumes the queue {queue.name}: what is sent there does not begin."
        elif queue.is_serial and queue.consumers > 1:
            yield f"{queue.consumers} workers consume the serial queue {queue.name}: one too many."


def workers_of(roll: Roll) -> Iterable[Worker]:
    here = [present for present in roll.present if isinstance(present.facts, WorkerFacts)]
    for present in here:
        yield Worker(present.facts.name, present.last_seen_at, present)
    known = {present.facts.name for present in here}
    for name in sorted(roll.last_seen.keys() - known):
        yield Worker(name, roll.last_seen[name], None)


def at_work(runs: Iterable[Run]) -> Mapping[str, tuple[Run, ...]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.state is RunState.RUNNING and run.worker:
            found[run.worker].append(run)
    return {process: tuple(found[process]) for process in sorted(found)}
