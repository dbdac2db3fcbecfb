"""The processes that a deployment needs for its jobs. The targets render them.

Two beats, of which one leads; the default worker; one worker for each serial queue, never two of
them; the HTTP server; and the arguments of Redis or Valkey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from supervisor.job.spec import JobSpec
from supervisor.job.topology import Topology, WorkerSpec
from supervisor.lists.keys import ADDRESSES

PORT = 9809

#: How long a worker that stops waits for a job without a time limit.
LONGEST_RUN = timedelta(minutes=10)

#: What a worker needs to stop after its last run has ended or was killed at its limit.
WORKER_MARGIN = timedelta(seconds=30)
BEAT_STOP = timedelta(seconds=30)
SERVE_STOP = timedelta(seconds=10)
#: Valkey writes its data before it ends.
VALKEY_STOP_SECONDS = 60

#: Valkey holds locks and runs: it must evict nothing, and lose at most a second in a crash.
VALKEY_ARGUMENTS = (
    *("--appendonly", "yes"),
    *("--appendfsync", "everysec"),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
)

#: Of HTTP, HTTPS and mail, to which pings, check-ins and notices go; their addresses are secrets.
OUTGOING_PORTS = (80, 443, 465, 587)


class ProcessRole(StrEnum):
    BEAT = "beat"
    WORKER = "worker"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the deployment."""

    name: str
    role: ProcessRole

    command: tuple[str, ...]
    """To be run in the app's environment."""

    health: tuple[str, ...]
    """The command that checks its health."""

    stop: timedelta
    """How long it may take from SIGTERM to its end."""

    replicas: int = 1

    single: bool = False
    """Whether a second one must never run."""

    queues: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    unlimited: tuple[str, ...] = ()
    """Its jobs without a time limit, for which `stop` is a guess."""

    @property
    def stop_seconds(self) -> int:
        return -(-self.stop // timedelta(seconds=1))


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    app: str
    beat: Process
    workers: tuple[Process, ...]
    serve: Process
    outgoing_ports: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        specs: Iterable[JobSpec],
        app: str,
        topology: Topology | None = None,
        concurrency: int | None = None,
        longest_run: timedelta = LONGEST_RUN,
    ) -> ProcessPlan:
        """topology: by default that of jobs of which no app has a route.
        longest_run: how long a worker that stops waits for a job without `time_limit`."""
        jobs = tuple(specs)
        return cls(
            app=app,
            beat=beat(app),
            workers=tuple(
                worker(spec, jobs, app, concurrency, longest_run)
                for spec in (topology or Topology.of(jobs)).workers
            ),
            serve=serve(),
            outgoing_ports=OUTGOING_PORTS if any(map(has_addresses, jobs)) else (),
        )


def has_addresses(spec: JobSpec) -> bool:
    """Whether the job names a server to which beat sends something."""
    return any(getattr(spec, key) for key in ADDRESSES)


def beat(app: str) -> Process:
    return Process(
        name="beat",
        role=ProcessRole.BEAT,
        command=("celery", "-A", app, "beat", "--loglevel", "info"),
        health=("supervisor", "health", "beat"),
        stop=BEAT_STOP,
        replicas=2,
    )


def serve() -> Process:
    return Process(
        name="serve",
        role=ProcessRole.SERVE,
        command=("supervisor", "serve", "--port", str(PORT)),
        health=("supervisor", "health", "serve"),
        stop=SERVE_STOP,
    )


def worker(
    spec: WorkerSpec,
    jobs: Iterable[JobSpec],
    app: str,
    concurrency: int | None,
    longest_run: timedelta,
) -> Process:
    limits = {job.name: list(limits_of(job, spec)) for job in jobs if job.name in spec.jobs}
    longest = [limit for of_job in limits.values() for limit in of_job if limit]
    unlimited = tuple(sorted(name for name, of_job in limits.items() if None in of_job))
    if unlimited or not longest:
        longest.append(longest_run)
    return Process(
        name=spec.name,
        role=ProcessRole.WORKER,
        command=(*spec.command(app, concurrency), "--loglevel", "info"),
        health=("supervisor", "health", "worker", "--name", f"{spec.name}@%h"),
        stop=max(longest) + WORKER_MARGIN,
        single=spec.serial,
        queues=spec.queues,
        jobs=spec.jobs,
        unlimited=unlimited,
    )


def limits_of(job: JobSpec, worker: WorkerSpec) -> Iterator[timedelta | None]:
    """The time limits of the job's tasks that this worker runs; None for one without."""
    for step in job.steps:
        queue = step.queue or job.routed_queue
        # A step without a queue goes to the default one, which no serial worker consumes.
        if queue in worker.queues or (queue is None and not worker.serial):
            yield step.time_limit or job.time_limit
    if not job.steps:
        yield job.time_limit
