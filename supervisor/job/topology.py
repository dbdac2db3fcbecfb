"""Which queues the jobs need and which workers consume them: pure, from the schedule files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec

DEFAULT_QUEUE = "celery"
DEFAULT_WORKER = "default"

#: Celery's pools in which runs are guarded, by the modules of their classes.
POOLS = {
    "celery.concurrency.prefork": "prefork",
    "celery.concurrency.thread": "threads",
    "celery.concurrency.solo": "solo",
    "celery.concurrency.gevent": "gevent",
}


def pool_name(pool: type) -> str:
    """Celery's name for a pool of this class; for a class unknown to Celery, that of the class."""
    names = (POOLS[own.__module__] for own in pool.__mro__ if own.__module__ in POOLS)
    return next(names, f"{pool.__module__}:{pool.__qualname__}")


def pool_of_setting(worker_pool: str) -> str | None:
    """Celery's name for the pool of a setting; None for a class that only a worker can look at."""
    if worker_pool in (*POOLS.values(), "eventlet"):
        return worker_pool
    return "prefork" if worker_pool == "processes" else POOLS.get(worker_pool.partition(":")[0])


Part = JobSpec | StepSpec
"""What has a message: a job of one task, or a step."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What runs of a job, or of its steps, need of a pool in addition to the guard."""

    time_limit: bool = False
    soft_time_limit: bool = False
    replace: bool = False

    @classmethod
    def of(cls, spec: JobSpec, steps: Iterable[Part] = ()) -> Needs:
        """steps: those in question, of a job of several. Each has the job's limits if it has none;
        `overlap` is not in their messages.
        """
        parts: tuple[Part, ...] = (spec, *steps)
        return cls(
            any(part.time_limit is not None for part in parts),
            any(part.soft_time_limit is not None for part in parts),
            spec.overlap is OverlapPolicy.REPLACE and not spec.steps,
        )

    def unmet_by(self, pool: str) -> str | None:
        """What workers with this pool cannot do for the job; None if they may run it."""
        if pool == "prefork":
            return None
        if pool not in POOLS.values():
            return "the guard"
        if self.time_limit and pool != "gevent":  # it has Celery's, raised when the code waits
            return "time_limit"
        if self.soft_time_limit:
            return "soft_time_limit"
        return "overlap: replace" if self.replace else None


Destinations = Mapping[str, Sequence[Part]]
"""The queues of a job's messages, each with the parts whose messages go there."""


def destinations(spec: JobSpec, queue_of: Callable[[Part], str | None]) -> Destinations:
    """queue_of: None for a part without a queue."""
    parts: dict[str, list[Part]] = {}
    for part in spec.steps or (spec,):
        if queue := queue_of(part):
            parts.setdefault(queue, []).append(part)
    return parts


def destinations_by_name(spec: JobSpec, default_queue: str) -> Destinations:
    """As far as the job itself says, without the app's routes."""
    return destinations(spec, lambda part: part.queue or spec.routed_queue or default_queue)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: its name, its queues, the jobs that it runs; a serial one has one process."""

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
    def of(
        cls,
        specs: Iterable[JobSpec],
        default_queue: str = DEFAULT_QUEUE,
        queues: Callable[[JobSpec], Destinations] | None = None,
    ) -> Topology:
        """queues: those of a job by the app's routes; without an app, by the job alone."""
        shared: dict[str, list[str]] = {default_queue: []}
        serial: dict[str, list[str]] = {}
        for spec in specs:
            for queue in queues(spec) if queues else destinations_by_name(spec, default_queue):
                group = serial if queue == spec.serial_queue else shared
                group.setdefault(queue, []).append(spec.name)
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
