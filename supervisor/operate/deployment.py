"""What the checks of `doctor` look at, read from the ledger and from the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from supervisor.app import SCHEDULER, Overridden, overridden, tasks_of
from supervisor.catalog.entries import CELERYS_OWN, Entries
from supervisor.job.spec import JobSpec
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Processes
from supervisor.ledger.queues import Queue, Queues
from supervisor.lists.schedules import ROWS_CHANGED
from supervisor.sending.app_settings import owner_of, settings_of
from supervisor.sending.queues import broker_fault
from supervisor.store.connection import check_functions, check_served

if TYPE_CHECKING:
    from celery import Celery

#: So many runs that were sent and have not begun are looked at, the oldest first.
MOST_SENT = 1000


@dataclass(frozen=True, slots=True)
class Deployment:
    now: datetime

    info: Mapping[str, Any]
    """What INFO says of the server."""

    processes: Processes
    beat: BeatRecord

    snapshots: str | None = None
    """The server's `save` setting, empty for none; None where it is not revealed, or does not
    matter."""

    specs: Sequence[JobSpec] = ()
    """Of the loaded jobs."""

    queues: Sequence[Queue] = ()

    shared_queues: Sequence[tuple[str, str]] = ()
    """Each with the other ledger."""

    app: AppSetup | None = None
    """None if no app was named."""

    refusal: str | None = None
    """Why Redis refuses writes. Beats and workers that run cannot say so then."""

    apart: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Why Celery has to make the message of each run -> the jobs for which it does."""

    tasks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Those that workers know, by the digest by which each of them names them."""

    waiting: Mapping[str, str] = field(default_factory=dict)
    """Queue -> the run whose message was sent there longest ago, and which has not begun."""

    def ago(self, moment: datetime) -> timedelta:
        return self.now - moment


def read(ledger: Ledger, broker: Queues | None = None) -> Deployment:
    """All but what the app knows. broker: without it, as the ledger and the workers report it.

    Raises NotServed for a Redis Cluster, WrongSchema, and NoPermissionError where Redis forbids
    this user to read.
    """
    check_served(ledger.client)
    check_functions(ledger.client)
    ledger.check_schema()
    specs, processes, now = (
        list(ledger.scheduled().values()),
        ledger.presences.processes(),
        ledger.now(),
    )
    info = ledger.client.info("all")
    return Deployment(
        now=now,
        info=info,
        snapshots=None if info["aof_enabled"] else snapshots(ledger),
        processes=processes,
        beat=ledger.beat(),
        queues=ledger.queues(specs, broker, processes),
        shared_queues=ledger.shared_queues(now),
        specs=specs,
        refusal=ledger.refusal(),
        apart=by_reason(ledger, specs),
        waiting=first_by_queue(ledger),
        tasks={
            digest: ledger.presences.tasks([worker])
            for digest, worker in {worker.tasks: worker for worker in processes.workers}.items()
        },
    )


def first_by_queue(ledger: Ledger) -> Mapping[str, str]:
    runs = ledger.client.zrange(ledger.keys.sent, 0, MOST_SENT - 1)
    first: dict[str, str] = {}
    for run, queue in ledger.read_fields(runs, "queue"):
        first.setdefault(str(queue), run)
    return first


def by_reason(ledger: Ledger, specs: Sequence[JobSpec]) -> Mapping[str, Sequence[str]]:
    reasons = ledger.read_each(
        [spec.name for spec in specs], lambda pipe, job: pipe.hget(ledger.keys.job(job), "apart")
    )
    jobs: dict[str, list[str]] = {}
    for job, reason in reasons:
        if reason:
            jobs.setdefault(reason, []).append(job)
    return jobs


def snapshots(ledger: Ledger) -> str | None:
    try:
        return str(ledger.client.config_get("save").get("save", ""))
    except ResponseError:  # a managed server does not reveal its configuration
        return None


# How a Celery app is set up, as far as only the app itself knows.


@dataclass(frozen=True, slots=True)
class AppSetup:
    overridden: tuple[Overridden, ...] = ()

    unguarded: tuple[str, ...] = ()
    """RedBeat's entries that are not jobs, except Celery's own."""

    rows_changed_at: datetime | None = None
    """When rows of django-celery-beat, which no beat follows, changed since schedule files were
    loaded."""

    owner: str | None = None
    """The name by which the ledger would know the app."""

    is_supervised: bool = True
    """Whether supervise() was called with it. Nothing else is known of other apps."""

    broker_fault: str | None = None
    """Why the broker cannot be reached."""

    unfit: tuple[str, ...] = ()
    """Loaded jobs that the app cannot run, each with the reason."""


def setup_of(app: Celery, ledger: Ledger | None) -> AppSetup:
    """ledger: None while it is unavailable."""
    if settings_of(app) is None:
        return AppSetup(is_supervised=False)
    # What matters is the beat that leads, which may be started with another scheduler.
    leads = ledger is not None and ledger.beat().leads(ledger.now())
    setup = AppSetup(
        overridden=tuple(o for o in overridden(app) if not (leads and o.setting == SCHEDULER)),
        owner=owner_of(app),
        broker_fault=broker_fault(app),
    )
    if ledger is None:
        return setup
    entries, loaded_at = Entries(app, ledger).unguarded(), ledger.beat().last_reload_at
    changes = (changed_since(app, loaded_at) for changed_since in ROWS_CHANGED)
    tasks = tasks_of(app)
    return replace(
        setup,
        unfit=tuple(
            f"job {spec.name}: {fault.what}"
            for spec in ledger.scheduled().values()
            for fault in tasks.faults(spec)
        ),
        unguarded=tuple(name for name in entries if name != CELERYS_OWN),
        rows_changed_at=next(filter(None, changes), None),
    )
