"""`supervise(app)`: makes an ordinary Celery app a supervised one.

Its tasks stay as they are. Beat gets another scheduler, and settings that the app has not set get
the values below. Runs of jobs, and calls of tasks with a `guard`, are put under the guard.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import wraps
from inspect import ismodule
from logging import getLevelName, getLogger
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.app.base import PendingConfiguration  # type: ignore[attr-defined]
from celery.app.defaults import DEFAULTS
from celery.app.utils import find_app

import supervisor.installed  # noqa: F401  (before all others)
from supervisor import logs
from supervisor.catalog.faults import JobFault
from supervisor.catalog.fitness import arguments_of, cannot_run
from supervisor.catalog.job_checks import Tasks, runs_by_itself
from supervisor.errors import NoQueue, NotConfigured, SupervisorError
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec
from supervisor.logs import get_logger
from supervisor.sending.app_settings import (
    NEEDED,
    adjust_broker,
    adjust_redbeat,
    broker_apart,
    broker_url_of,
    check_certificate,
    has_unchecked_broker,
    hide_unreadable,
    redbeat_address,
    required_settings,
    separate_redbeat,
    setting,
    settings_from,
)
from supervisor.sending.guarded_calls import adopt_guarded
from supervisor.sending.queues import queue_of
from supervisor.settings import DEFAULT_PREFIX, DEFAULT_URL, Settings, running_url
from supervisor.store.address import is_redis

log = get_logger("supervisor.app")

#: Defaults of a supervised app.
SCHEDULER = "beat_scheduler"
GIVEN = {SCHEDULER: "supervisor.beat.scheduler:SupervisedScheduler"}

#: Schedulers that ours replaces: it emits all that RedBeat's own would.
REPLACED = ("redbeat.RedBeatScheduler", "redbeat.schedulers.RedBeatScheduler")
OWN = ("supervisor", "supervisor.beat.scheduler.SupervisedScheduler")

BEAT_HINT = (
    "import what it emits into schedule files, and start `celery beat -S supervisor` in its place"
    " (docs/how-to/adopting.md)"
)


def supervise(
    app: Celery,
    *,
    schedules: str | Path | None = None,
    redis_url: str | None = None,
    prefix: str | None = None,
    owner: str | None = None,
    adopt_entries: bool = False,
    adopt_rows: bool = False,
) -> Celery:
    """Puts a Celery app under supervision, and returns it. Call it where the app is created.

    - `schedules`: the directory of schedule files that beat reads and watches. SUPERVISOR_SCHEDULES
      takes precedence.
    - `redis_url`: the ledger's Redis, by default the app's broker. SUPERVISOR_REDIS_URL takes
      precedence.
    - `prefix`: the prefix of the ledger's keys, by default `supervisor`. SUPERVISOR_PREFIX takes
      precedence.
    - `owner`: the name by which the ledger knows this app, by default the app's own
      (`Celery("proj")`). SUPERVISOR_OWNER takes precedence. A beat with another name cannot lead.
    - `adopt_entries`: RedBeat entries that the app's code saves become jobs like any other. Without
      it they run as before, without the guard.
    - `adopt_rows`: rows of django-celery-beat are jobs, as the app's code and admin save them.

    Raises NotConfigured.
    """
    app.supervisor = {  # type: ignore[attr-defined]
        "schedules": os.environ.get("SUPERVISOR_SCHEDULES") or schedules,
        "redis_url": os.environ.get("SUPERVISOR_REDIS_URL") or redis_url,
        "prefix": Settings(
            prefix=os.environ.get("SUPERVISOR_PREFIX") or prefix or DEFAULT_PREFIX
        ).prefix,
        "owner": os.environ.get("SUPERVISOR_OWNER") or owner,
        "adopt_entries": adopt_entries,
        "adopt_rows": adopt_rows,
    }
    adopt_guarded(app)
    if _has_settings(app):
        _adjust(app, app.conf)
    else:
        app.on_after_configure.connect(
            lambda source, **_: _adjust(app, source), weak=False, sender=app
        )
    signals.worker_init.connect(_prepare_worker, weak=False)
    signals.celeryd_after_setup.connect(_say_what_differs, weak=False)
    signals.after_setup_logger.connect(logs.fill_formats, weak=False)
    signals.after_setup_task_logger.connect(logs.fill_formats, weak=False)
    _hear_of_beats()
    return app


def load_app(name: str) -> Celery:
    """The app that ``celery -A name`` finds, with its tasks imported. Raises NotConfigured.

    Errors of the app's own modules are raised as they are, but for imports that fail: then a
    library is missing, or has another version than the one that imports it.
    """
    try:
        return completed(named_app(name))
    except ImportError as error:
        *_, frame = traceback.extract_tb(error.__traceback__)
        place = f"{frame.filename}:{frame.lineno}"
        raise NotConfigured(f"the app {name!r} cannot be imported: {error} ({place})") from error


def named_app(name: str) -> Celery:
    """Like `load_app`, without importing tasks."""
    if not name.strip(".:"):
        raise no_app(name, "that names no module")
    try:
        app = find_app(name)
    except ModuleNotFoundError as error:
        # Of a module without that attribute, Celery looks for a module "proj:attribute" as well.
        if isinstance(error.__context__, AttributeError) and ":" in (error.name or ""):
            raise no_app(name, error.__context__) from error
        if error.name and f"{name}.".replace(":", ".").startswith(f"{error.name}."):
            raise no_app(name, error) from error
        raise
    except AttributeError as error:
        if ismodule(error.obj):
            raise no_app(name, f"{error.obj.__name__} has none") from error
        raise
    if not isinstance(app, Celery):
        raise no_app(name, f"that is a {type(app).__name__}")
    return app


def no_app(name: str, why: object) -> NotConfigured:
    return NotConfigured(f"no Celery app {name!r}: {why}")


def completed(app: Celery) -> Celery:
    """The app, with the tasks that a worker of it would know."""
    app.loader.import_default_modules()
    app.finalize()
    return app


class AppTasks(Tasks):
    """The tasks of a completed app, and the queues that it has for their messages."""

    def __init__(self, app: Celery) -> None:
        super().__init__({name: arguments_of(task) for name, task in app.tasks.items()})
        self._app = app

    def faults(self, spec: JobSpec) -> Iterator[JobFault]:
        if not spec.steps:
            has_arguments = runs_by_itself(spec)
            yield from self._faults_of(
                spec, spec, ("task",), ("queue", "serial", "task"), has_arguments
            )
        for number, step in enumerate(spec.steps):
            faults = self._faults_of(spec, step, ("steps",), ("steps",), step.foreach is None)
            for fault in faults:
                what = f"step {number + 1}: {fault.what}"
                yield replace(fault, what=what, path=(number, "task"))

    def _faults_of(
        self,
        spec: JobSpec,
        part: JobSpec | StepSpec,
        task_keys: tuple[str, ...],
        queue_keys: tuple[str, ...],
        has_arguments: bool,
    ) -> Iterator[JobFault]:
        """has_arguments: they are those of the message, by which routers may decide."""
        task = self._app.tasks.get(str(part.task))
        if task and (why := cannot_run(task)):
            yield JobFault(task_keys, f"the task {task.name!r} {why[0]}", why[1])
        try:
            if has_arguments:
                named = part.queue or spec.routed_queue
                queue_of(self._app, str(part.task), part.args, part.kwargs, named)
        except NoQueue as error:
            yield JobFault(queue_keys, f"no queue for its messages: {error}")


def tasks_of(app: Celery) -> AppTasks:
    return AppTasks(app)


#: The settings that supervise() may adjust.
ADJUSTED = (
    *GIVEN,
    *("broker_url", "broker_use_ssl", "broker_transport_options"),
    *("redbeat_key_prefix", "redbeat_redis_url", "redbeat_redis_options"),
)


def _has_settings(app: Celery) -> bool:
    """Whether they are loaded, or were assigned to the app: Celery says so of the former alone."""
    conf = app._conf  # type: ignore[attr-defined]
    pending = getattr(conf, "changes", None)
    is_pending = isinstance(pending, PendingConfiguration) and (
        pending.callback == app._finalize_pending_conf  # type: ignore[attr-defined]
    )
    return bool(app.configured) or not (conf is None or is_pending)  # type: ignore[attr-defined]


def _adjust(app: Celery, conf: Any) -> None:
    app.supervisor["before"] = {name: setting(conf, name) for name in ADJUSTED}  # type: ignore[attr-defined]
    if not broker_url_of(conf):
        own = app.supervisor["redis_url"]  # type: ignore[attr-defined]
        conf.broker_url = own or running_url() or DEFAULT_URL
    for key, value in GIVEN.items():
        if conf.get(key) == DEFAULTS.get(key):
            setattr(conf, key, value)
    if dotted(conf.get("beat_scheduler")) in ("", *REPLACED, *OWN):
        conf.beat_scheduler = GIVEN[SCHEDULER]
    if logs.is_chosen() and conf.get("worker_hijack_root_logger"):
        signals.setup_logging.connect(_set_up_logging, weak=False)
    given = app.supervisor  # type: ignore[attr-defined]
    try:
        redbeat = redbeat_address(conf)
        if is_redis(redbeat):
            given["redbeat"] = redbeat
        adjust_broker(conf)
        settings = settings_from(conf, given)
        check_certificate(conf, settings)
        separate_redbeat(conf, settings)
        adjust_redbeat(app, conf, settings)
    except NotConfigured as error:  # raised where the address is needed
        given["unreadable"] = error
        hide_unreadable(conf)


def dotted(scheduler: Any) -> str:
    """The dotted name of a scheduler that is given as a class or by its name."""
    if isinstance(scheduler, str | None):
        return (scheduler or "").replace(":", ".")
    return f"{scheduler.__module__}.{scheduler.__qualname__}"


@dataclass(frozen=True, slots=True)
class Overridden:
    """A setting whose value breaks a guarantee; `needed` is the value that keeps it."""

    setting: str
    value: Any
    needed: Any

    @property
    def hint(self) -> str:
        if self.setting == SCHEDULER:
            return f"a beat with this scheduler starts no job: {BEAT_HINT}"
        return "leave it out of the app's settings: supervise() sets it"


def adjusted(app: Celery) -> dict[str, tuple[Any, Any]]:
    """The settings that supervise() has changed: what they were, and what they are."""
    now = {name: setting(app.conf, name) for name in ADJUSTED}
    before = app.supervisor["before"]  # type: ignore[attr-defined]
    return {name: (before[name], now[name]) for name in ADJUSTED if before[name] != now[name]}


def overridden(app: Celery) -> Iterator[Overridden]:
    needed_settings = {**NEEDED, SCHEDULER: GIVEN[SCHEDULER]}
    for name, needed in needed_settings.items():
        value = app.conf.get(name)
        if value != needed and not (name in NEEDED and value == DEFAULTS[name]):
            yield Overridden(name, value, needed)


def _or_ends(handler: Callable[..., None]) -> Callable[..., None]:
    """Celery logs an error of a signal's handler and goes on: here, without supervision."""

    @wraps(handler)
    def handle(*args: Any, **kwargs: Any) -> None:
        try:
            handler(*args, **kwargs)
        except SupervisorError as error:
            raise SystemExit(str(error)) from None
        except Exception as error:
            log.exception("process not prepared")
            raise SystemExit(f"this process cannot be supervised: {error!r}") from error

    return handle


@_or_ends
def _prepare_worker(sender: Any, **_: Any) -> None:
    if getattr(sender.app, "supervisor", None) is None:
        return
    required_settings(sender.app)
    # Beat and the command line never need the worker's side.
    from supervisor.worker.startup import prepare

    prepare(sender)


def _say_what_differs(instance: Any, **_: Any) -> None:
    """Logs what differs, once the worker's logging is set up."""
    if getattr(instance.app, "supervisor", None) is None:
        return
    if apart := broker_apart(instance.app, required_settings(instance.app)):
        log.warning("broker apart from the ledger", what=apart)
    warn_of_unchecked_broker(instance.app)
    for each in overridden(instance.app):
        if each.setting == SCHEDULER:  # a beat that uses it says so
            continue
        log.warning("setting overridden", **asdict(each), hint=each.hint)


def warn_of_unchecked_broker(app: Celery) -> None:
    """The app's settings stay as they are."""
    if has_unchecked_broker(app.conf):
        option = "?ssl_cert_reqs=required&ssl_ca_certs=FILE"
        hint = f"append {option} to its address (docs/how-to/redis.md)"
        log.warning("broker's certificate not checked", hint=hint)


def _hear_of_beats() -> None:
    """Puts our receiver before RedBeat's, which waits for its lock: for ever if another leads."""
    redbeat = sys.modules.get("redbeat.schedulers")
    if redbeat:
        signals.beat_init.disconnect(redbeat.acquire_distributed_beat_lock)
    signals.beat_init.connect(_prepare_beat, weak=False)
    if redbeat:
        signals.beat_init.connect(redbeat.acquire_distributed_beat_lock)


@_or_ends
def _prepare_beat(sender: Any, **_: Any) -> None:
    """Takes the place of RedBeat's own scheduler, refuses those made of it, and warns of others."""
    if getattr(sender.app, "supervisor", None) is None:
        return
    from redbeat.schedulers import RedBeatScheduler

    from supervisor.beat.scheduler import SupervisedScheduler

    warn_of_unchecked_broker(sender.app)
    used = type(sender.scheduler)
    if issubclass(used, SupervisedScheduler):
        return
    if used is RedBeatScheduler:
        sender.scheduler_cls = GIVEN[SCHEDULER]
        sender.scheduler = sender.get_scheduler()
        log.info("scheduler replaced", scheduler=dotted(used), by=sender.scheduler_cls)
        return
    if issubclass(used, RedBeatScheduler):  # it would take the lock that says which beat leads
        raise SystemExit(
            f"this beat has the scheduler {dotted(used)}, which starts no job: {BEAT_HINT}"
        )
    log.warning("jobs not emitted by this beat", scheduler=dotted(used), hint=BEAT_HINT)


def _set_up_logging(
    loglevel: Any = None, logfile: Any = None, format: Any = None, colorize: Any = None, **_: Any
) -> None:
    """Sets logging up in place of Celery, unless the app does it itself; sends the same signals."""
    if len(signals.setup_logging.receivers) > 1:
        return
    level = getLevelName(loglevel) if isinstance(loglevel, int) else loglevel
    logs.configure(level=level or "info", logfile=logfile)
    given = {"loglevel": loglevel, "logfile": logfile, "format": format, "colorize": colorize}
    signals.after_setup_logger.send(None, logger=getLogger(), **given)
    signals.after_setup_task_logger.send(None, logger=getLogger("celery.task"), **given)
