"""The processes of a deployment, from its jobs: pure; the targets render them.

Two beats, of which one leads; the default worker; one worker for each serial queue, never two of
them; the HTTP server; and the arguments of Redis or Valkey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from supervisor.job.spec import JobSpec
from supervisor.job.topology import DEFAULT_QUEUE, Topology, WorkerSpec
from supervisor.lists.keys import ADDRESSES

PORT = 9809

#: How long a job without a time limit is assumed to need when its worker stops.
LONGEST_RUN = timedelta(minutes=10)

#: From the end of the last run, or its kill at the limit, to the end of its worker.
WORKER_MARGIN = timedelta(seconds=30)
BEAT_STOP = timedelta(seconds=30)
SERVE_STOP = timedelta(seconds=10)
#: It writes its data before it ends.
VALKEY_STOP_SECONDS = 60

#: It holds locks and runs: nothing may be evicted, and a crash may lose one second at most.
VALKEY_ARGUMENTS = (
    *("--appendonly", "yes"),
    *("--appendfsync", "everysec"),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
)

#: Those of pings, check-ins and notices, whose addresses are secrets: http, https, and mail.
OUTGOING_PORTS = (80, 443, 465, 587)


class Role(StrEnum):
    BEAT = "beat"
    WORKER = "worker"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Process:
    """command: as a shell in the environment's directory finds it.

    stop: how long it may take from SIGTERM to its end. single: a second one must never run.
    unlimited: jobs without a time limit, for which `stop` is a guess.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    health: tuple[str, ...]
    stop: timedelta
    replicas: int = 1
    single: bool = False
    queues: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()

    @property
    def stop_seconds(self) -> int:
        return -(-self.stop // timedelta(seconds=1))


@dataclass(frozen=True, slots=True)
class Plan:
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
        default_queue: str = DEFAULT_QUEUE,
        concurrency: int | None = None,
        longest_run: timedelta = LONGEST_RUN,
    ) -> Plan:
        """longest_run: what a job without `time_limit` is assumed to need."""
        jobs = tuple(specs)
        return cls(
            app=app,
            beat=beat(app),
            workers=tuple(
                worker(spec, jobs, app, concurrency, longest_run)
                for spec in Topology.of(jobs, default_queue).workers
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
        role=Role.BEAT,
        command=("celery", "-A", app, "beat", "--loglevel", "info"),
        health=("supervisor", "health", "beat"),
        stop=BEAT_STOP,
        replicas=2,
    )


def serve() -> Process:
    return Process(
        name="serve",
        role=Role.SERVE,
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
    mine = [job for job in jobs if job.name in spec.jobs]
    limits = {job.name: list(limits_of(job, spec)) for job in mine}
    known = [limit for found in limits.values() for limit in found if limit]
    unlimited = tuple(sorted(name for name, found in limits.items() if None in found))
    guesses = [longest_run] if unlimited or not known else []
    return Process(
        name=spec.name,
        role=Role.WORKER,
        command=(*spec.command(app, concurrency), "--loglevel", "info"),
        health=("supervisor", "health", "worker", "--name", f"{spec.name}@%h"),
        stop=max(*known, *guesses, timedelta()) + WORKER_MARGIN,
        single=spec.serial,
        queues=spec.queues,
        jobs=spec.jobs,
        unlimited=unlimited,
    )


def limits_of(job: JobSpec, worker: WorkerSpec) -> Iterator[timedelta | None]:
    """The time limits of the job's tasks that this worker runs; None for one without."""
    for step in job.steps:
        queue = step.queue or job.routed_queue
        # Without a queue it is sent to the default one, which a serial worker never consumes.
        if queue in worker.queues or (queue is None and not worker.serial):
            yield step.time_limit or job.time_limit
    if not job.steps:
        yield job.time_limit
