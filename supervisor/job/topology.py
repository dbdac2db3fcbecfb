"""Which queues the jobs need and which workers consume them: pure, from the schedule files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from supervisor.job.spec import JobSpec

DEFAULT_QUEUE = "celery"
DEFAULT_WORKER = "default"


def queues_of(spec: JobSpec, queue_of: Callable[[str], str]) -> tuple[str, ...]:
    """Where the messages of a job's runs go; `queue_of` knows it of a task without a queue."""
    named = (
        (step.queue or spec.routed_queue or queue_of(step.task) for step in spec.steps)
        if spec.steps
        else (spec.routed_queue or queue_of(str(spec.task)),)
    )
    return tuple(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: its name, its queues, the jobs that come to it; a serial one has one process."""

    name: str
    queues: tuple[str, ...]
    jobs: tuple[str, ...]
    serial: bool

    def command(self, app: str, concurrency: int | None = None) -> list[str]:
        """Celery's own command line for it; `concurrency` is for workers that are not serial."""
        processes = 1 if self.serial else concurrency
        return [
            "celery",
            "-A",
            app,
            "worker",
            "-n",
            f"{self.name}@%h",
            "-Q",
            ",".join(self.queues),
            *(("-c", str(processes)) if processes else ()),
            "--prefetch-multiplier",
            "1",
            "-P",
            "prefork",
        ]


@dataclass(frozen=True, slots=True)
class Topology:
    """The default worker first, then one dedicated worker for each serial queue."""

    workers: tuple[WorkerSpec, ...]

    @classmethod
    def of(cls, specs: Iterable[JobSpec], default_queue: str = DEFAULT_QUEUE) -> Topology:
        shared: dict[str, list[str]] = {default_queue: []}
        serial: dict[str, list[str]] = {}
        for spec in specs:
            named = (step.queue or spec.routed_queue for step in spec.steps or (spec,))
            for queue in dict.fromkeys(named):
                queues = serial if queue and queue == spec.serial_queue else shared
                queues.setdefault(queue or default_queue, []).append(spec.name)
        default = WorkerSpec(
            name=DEFAULT_WORKER,
            queues=tuple(shared),
            jobs=tuple(sorted({job for jobs in shared.values() for job in jobs})),
            serial=False,
        )
        dedicated = (
            WorkerSpec(queue, (queue,), tuple(sorted(jobs)), serial=True)
            for queue, jobs in sorted(serial.items())
        )
        return cls((default, *dedicated))
