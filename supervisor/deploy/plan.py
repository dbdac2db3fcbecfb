"""Which processes a deployment has: pure, from the jobs; what they are rendered to comes after.

Two beats, of which one leads; the default worker; one worker for each serial queue, which is never
doubled; the HTTP server. Redis or Valkey is not ours, but its arguments are: see VALKEY_ARGUMENTS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlsplit

from supervisor.job.secrets import TOKEN
from supervisor.job.spec import JobSpec
from supervisor.job.topology import DEFAULT_QUEUE, Topology, WorkerSpec

# Jobs -> the ports that beat has to reach to tell their `ping_url` of runs.


USUAL = {"http": 80, "https": 443}

#: Stands for a reference: no address has this port, so that one that is not known is seen.
UNKNOWN = "0"


def ping_ports(specs: Iterable[JobSpec]) -> tuple[int, ...]:
    """In ascending order; none where no job has a `ping_url`."""
    found = (ports_of(spec.ping_url) for spec in specs if spec.ping_url)
    return tuple(sorted({port for ports in found for port in ports}))


def ports_of(written: str) -> Iterator[int]:
    """Where a reference stands for the port, or for the whole address, the usual ones."""
    if TOKEN.match(written):
        yield from USUAL.values()
        return
    parts = urlsplit(TOKEN.sub(UNKNOWN, written))
    if parts.port == int(UNKNOWN):
        yield from USUAL.values()
    else:
        yield parts.port or USUAL[parts.scheme]


PORT = 9809

#: A job without a time limit is taken to need no longer than this when its worker stops.
LONGEST_RUN = timedelta(minutes=10)

#: From the last run's end, or its being killed at its limit, to the end of its worker.
WORKER_MARGIN = timedelta(seconds=30)
BEAT_STOP = timedelta(seconds=30)
SERVE_STOP = timedelta(seconds=10)
#: It writes what it has before it ends.
VALKEY_STOP_SECONDS = 60

#: Locks and runs live there: nothing may be evicted, and a crash may cost a second at most.
VALKEY_ARGUMENTS = (
    *("--appendonly", "yes"),
    *("--appendfsync", "everysec"),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
)


class Role(StrEnum):
    BEAT = "beat"
    WORKER = "worker"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Process:
    """command: as a shell in the environment's directory would find it.

    stop: how long it may take from SIGTERM to its end. single: a second one must never run.
    unlimited: the jobs whose time is not known, so that `stop` is a guess for them.
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
    default_queue: str
    beat: Process
    workers: tuple[Process, ...]
    serve: Process
    ping_ports: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        specs: Iterable[JobSpec],
        app: str,
        default_queue: str = DEFAULT_QUEUE,
        concurrency: int | None = None,
        longest_run: timedelta = LONGEST_RUN,
    ) -> Plan:
        """longest_run: what a job without `time_limit` is taken to need."""
        jobs = tuple(specs)
        return cls(
            app=app,
            default_queue=default_queue,
            beat=beat(app),
            workers=tuple(
                worker(spec, jobs, app, concurrency, longest_run)
                for spec in Topology.of(jobs, default_queue).workers
            ),
            serve=serve(),
            ping_ports=ping_ports(jobs),
        )


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
    """The time limits of the job's tasks that come to this worker; None for one without."""
    for step in job.steps:
        queue = step.queue or job.routed_queue
        # Without a queue it goes to the default one, which a serial worker never consumes.
        if queue in worker.queues or (queue is None and not worker.serial):
            yield step.time_limit or job.time_limit
    if not job.steps:
        yield job.time_limit
