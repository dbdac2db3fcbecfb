"""The facts that the checks of `doctor` look at, read from the ledger and from the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import NoPermissionError, ResponseError

from supervisor.app import SCHEDULER, Overridden, overridden, tasks_of
from supervisor.catalog.entries import Entries
from supervisor.catalog.schedule_files import load
from supervisor.errors import ScheduleFilesInvalid
from supervisor.features.adoption.adopted import entries_lost
from supervisor.features.adoption.django_rows import changed_at
from supervisor.features.adoption.import_celery import OF_BEAT
from supervisor.job.changes import difference
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues, Queue, Queues, queues
from supervisor.ledger.records import FILES, BeatRecord
from supervisor.sending.app_settings import (
    broker_apart,
    owner_of,
    redbeat_apart,
    schedules_of,
    settings_of,
)
from supervisor.sending.queues import broker_fault
from supervisor.settings import is_redis
from supervisor.store.connection import check_functions, check_served

if TYPE_CHECKING:
    from celery import Celery


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """info: what INFO says of the server; empty where this user may not ask. snapshots: its `save`
    setting, empty for none; None where it is not revealed, or does not matter. specs: of the
    loaded jobs. shared_queues: each with the other ledger. known_tasks: those that any worker
    knows. silent: running runs whose lease has expired, and when it did. unaccounted: ticks by job.
    unread: jobs that only another version can read. schema: of the ledger, None of a new one. app:
    if one was named. forbidden: errors of Redis to commands that this user may not run; their facts
    are missing. refusal: why Redis refuses writes; then beats and workers that run cannot say so.
    apart: jobs by why Celery has to make the message of each of their runs.
    """

    now: datetime
    info: Mapping[str, Any]
    roll: Roll
    beat: BeatRecord
    snapshots: str | None = None
    specs: Sequence[JobSpec] = ()
    queues: Sequence[Queue] = ()
    shared_queues: Sequence[tuple[str, str]] = ()
    known_tasks: frozenset[str] = frozenset()
    silent: Mapping[str, datetime] = field(default_factory=dict)
    unaccounted: Mapping[str, int] = field(default_factory=dict)
    unread: Sequence[str] = ()
    schema: int | None = None
    app: AppFacts | None = None
    forbidden: Sequence[str] = ()
    refusal: str | None = None
    apart: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def ago(self, moment: datetime) -> timedelta:
        return self.now - moment


T = TypeVar("T")


def read(
    ledger: Ledger,
    app: Callable[[Mapping[str, JobSpec]], AppFacts] | None = None,
    broker: Queues | None = None,
) -> DoctorFacts:
    """app: gives the facts of the app for the loaded jobs.

    Raises NotServed for a Redis Cluster, and NoPermissionError where Redis forbids reading the
    ledger itself.
    """
    forbidden: dict[str, None] = {}

    def permitted(question: Callable[[], T], otherwise: T) -> T:
        """The answer; `otherwise` where this user may not ask."""
        try:
            return question()
        except NoPermissionError as error:
            forbidden[str(error)] = None
            return otherwise

    check_served(ledger.client)
    check_functions(ledger.client)
    loaded, roll, now = ledger.loaded(), ledger.presences.roll(), ledger.now()
    # Guarded tasks are left out: once recorded they stay, whether code still calls them or not.
    guarded, specs = ledger.guarded(), list(loaded.specs.values())
    every = dict(sorted({**guarded, **loaded.specs}.items()))
    broker = broker or LedgerQueues(ledger.client, roll)
    info: Mapping[str, Any] = permitted(lambda: ledger.client.info("all"), {})
    return DoctorFacts(
        now=now,
        info=info,
        snapshots=snapshots(ledger) if info and depends_on_snapshots(info) else None,
        roll=roll,
        beat=ledger.beat(),
        queues=permitted(lambda: queues(specs, roll, broker, ledger.drains.since()), []),
        shared_queues=ledger.shared_queues(now),
        specs=specs,
        known_tasks=ledger.presences.tasks(roll.workers),
        silent=ledger.silent(now),
        unaccounted=ledger.figures.unaccounted(list(every)),
        unread=tuple(loaded.unread),
        schema=ledger.schema(),
        app=permitted(lambda: app(every), None) if app else None,
        forbidden=tuple(forbidden),
        refusal=ledger.refusal(),
        apart=by_reason(ledger.apart([spec.name for spec in specs])),
    )


def by_reason(apart: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for job, reason in apart.items():
        found.setdefault(reason, []).append(job)
    return found


def depends_on_snapshots(info: Mapping[str, Any]) -> bool:
    """Few users may read a server's settings: they are asked for only where it matters."""
    return not info["aof_enabled"] or info.get("rdb_last_bgsave_status") == "err"


def snapshots(ledger: Ledger) -> str | None:
    try:
        return str(ledger.client.config_get("save").get("save", ""))
    except ResponseError:  # a managed server does not reveal its configuration
        return None


# How a Celery app is set up, as far as only the app itself knows.


@dataclass(frozen=True, slots=True)
class AppFacts:
    """strange_entries: jobs whose entry in RedBeat's schedule is missing or differs, and entries
    of jobs that are not loaded.
    unguarded: RedBeat's entries that are not jobs, except Celery's own. unstored: those of
    `beat_schedule` that RedBeat cannot store. rows_changed_at: of django-celery-beat, that no beat
    follows, since schedule files were loaded.
    unloaded: jobs in which the app's schedule files, if they are here, differ from the ledger.
    fetches_ahead: busy workers take messages that they cannot begin yet. broker_apart: in words,
    that the broker is another Redis than the ledger; redbeat_apart: that RedBeat's is.
    owner: the name by which the ledger would know the app.
    is_supervised: supervise() was called with it; nothing else is known of other apps.
    refused: jobs that the app cannot run, and why. broker_fault: why the broker cannot be reached.
    file_problems: of the app's schedule files here.
    """

    overridden: tuple[Overridden, ...] = ()
    strange_entries: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()
    unstored: tuple[str, ...] = ()
    rows_changed_at: datetime | None = None
    unloaded: tuple[str, ...] = ()
    fetches_ahead: bool = False
    broker_apart: str | None = None
    redbeat_apart: str | None = None
    owner: str | None = None
    is_supervised: bool = True
    broker_fault: str | None = None
    file_problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def app_facts(app: Celery, ledger: Ledger | None, specs: Mapping[str, JobSpec]) -> AppFacts:
    """ledger: None while it is unavailable; then `specs` are not known either."""
    settings = settings_of(app)
    if settings is None:
        return AppFacts(is_supervised=False)
    wanted, problems = read_files(schedules_of(app), settings.prefix)
    # What matters is the beat that leads, which may be started with another scheduler.
    leads = ledger is not None and ledger.beat().leads(ledger.now())
    facts = AppFacts(
        overridden=tuple(o for o in overridden(app) if not (leads and o.setting == SCHEDULER)),
        # `worker_disable_prefetch` is for Redis alone.
        fetches_ahead=not is_redis(str(app.conf.broker_url or "")) and not app.conf.task_acks_late,
        broker_apart=broker_apart(app, settings),
        redbeat_apart=redbeat_apart(app, settings),
        owner=owner_of(app),
        broker_fault=broker_fault(app),
        file_problems=problems,
    )
    if ledger is None:
        return facts
    loaded = {name: spec for name, spec in specs.items() if not spec.is_of_code}
    entries, tasks = Entries(app, ledger), tasks_of(app)
    return replace(
        facts,
        refused=tuple(
            f"{name}: {fault.text}" for name, spec in specs.items() for fault in tasks.faults(spec)
        ),
        strange_entries=tuple(entries.strange(loaded)),
        unguarded=tuple(name for name in entries.unguarded() if name != OF_BEAT),
        unstored=tuple(entries_lost(app, entries)),
        rows_changed_at=rows_changed_at(app, ledger),
        unloaded=() if wanted is None else unloaded(ledger, wanted),
    )


def rows_changed_at(app: Celery, ledger: Ledger) -> datetime | None:
    if app.supervisor["adopt_rows"]:  # type: ignore[attr-defined]
        return None
    try:
        changed, loaded = changed_at(), ledger.beat().last_reload_at
    except Exception:  # noqa: BLE001 - of Django's database, which is none of the ledger's
        return None
    return changed if changed and loaded and changed > loaded else None


def read_files(
    files: Path | None, prefix: str
) -> tuple[Mapping[str, JobSpec] | None, tuple[str, ...]]:
    """The jobs of the files, None where there are none or they are broken, and their problems."""
    if files is None or is_missing(files):
        return None, ()
    try:
        return load(files, prefix=prefix).specs, ()
    except ScheduleFilesInvalid as error:
        return None, tuple(map(str, error.problems))


def is_missing(path: Path) -> bool:
    """Whether nothing is there; False for a path that cannot be looked at, which `load` reports."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def unloaded(ledger: Ledger, wanted: Mapping[str, JobSpec]) -> tuple[str, ...]:
    changes = difference(ledger.loaded().of(FILES).specs, wanted)
    return (*changes.added, *changes.changed, *changes.removed)
