"""How a Celery app is set up, as far as only the app itself knows: for `supervisor doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery

from supervisor.app import Overridden, overridden
from supervisor.beat.entries import Entries
from supervisor.beat.import_celery import OF_BEAT
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files.schedule_files import load
from supervisor.job.changes import difference
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import FILES
from supervisor.sending.app_settings import (
    broker_apart,
    owner_of,
    redbeat_apart,
    schedules_of,
    settings_of,
)
from supervisor.settings import is_redis

#: What kombu's transport for Redis does without one.
VISIBILITY_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class LateTask:
    """A task of a job whose message is acknowledged when it has ended; None: it has no limit."""

    job: str
    task: str
    time_limit: timedelta | None


@dataclass(frozen=True, slots=True)
class AppFacts:
    """visibility_timeout: of the broker, None for one that has none. strange_entries: jobs whose
    entry in RedBeat's schedule is missing or differs, and entries of jobs that are not loaded.
    unguarded: RedBeat's entries that are no job, but for Celery's own.
    unloaded: jobs in which the app's schedule files, if they are here, differ from the ledger.
    fetches_ahead: busy workers take messages that they cannot begin yet. broker_apart: in words,
    that the broker is another Redis than the ledger; redbeat_apart: that RedBeat's is.
    owner: the name by which the ledger would know the app.
    is_supervised: supervise() was called with it; nothing else is known of other apps.
    """

    overridden: tuple[Overridden, ...] = ()
    visibility_timeout: timedelta | None = None
    late_tasks: tuple[LateTask, ...] = ()
    strange_entries: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    fetches_ahead: bool = False
    broker_apart: str | None = None
    redbeat_apart: str | None = None
    owner: str | None = None
    is_supervised: bool = True


def app_facts(app: Celery, ledger: Ledger, specs: Mapping[str, JobSpec]) -> AppFacts:
    settings = settings_of(app)
    if settings is None:
        return AppFacts(is_supervised=False)
    loaded = {name: spec for name, spec in specs.items() if not spec.is_of_code}
    entries = Entries(app, ledger.client, ledger.keys)
    timeout, redbeat = visibility_timeout(app), redbeat_apart(app, settings)
    return AppFacts(
        overridden=tuple(overridden(app)),
        visibility_timeout=timeout,
        late_tasks=tuple(late_tasks(app, specs.values())),
        strange_entries=tuple(entries.strange(loaded)),
        unguarded=tuple(name for name in entries.unguarded() if name != OF_BEAT),
        unloaded=unloaded(schedules_of(app), ledger, settings.prefix),
        # `worker_disable_prefetch` is for Redis alone.
        fetches_ahead=timeout is None and not app.conf.task_acks_late,
        broker_apart=broker_apart(app, settings),
        redbeat_apart=str(redbeat) if redbeat else None,
        owner=owner_of(app),
    )


def unloaded(files: Path | None, ledger: Ledger, prefix: str) -> tuple[str, ...]:
    """None of broken files, which are a finding of their own where beat reads them."""
    if files is None or not files.exists():
        return ()
    try:
        changes = difference(ledger.loaded().of(FILES).specs, load(files, prefix=prefix).specs)
    except ScheduleFilesInvalid:
        return ()
    return (*changes.added, *changes.changed, *changes.removed)


def visibility_timeout(app: Celery) -> timedelta | None:
    if not is_redis(str(app.conf.broker_url or "")):
        return None
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    seconds = options.get("visibility_timeout")
    return VISIBILITY_TIMEOUT if seconds is None else timedelta(seconds=float(seconds))


def late_tasks(app: Celery, specs: Iterable[JobSpec]) -> Iterable[LateTask]:
    for spec in specs:
        limits = {step.task: step.time_limit or spec.time_limit for step in spec.steps}
        for name, limit in (limits or {str(spec.task): spec.time_limit}).items():
            task = app.tasks.get(name)
            if task is not None and task.acks_late:
                own = task.time_limit or app.conf.task_time_limit
                yield LateTask(spec.name, name, limit or (own and timedelta(seconds=own)) or None)
