"""A trigger that fires later: everything that can be checked is checked when it is requested.

Nothing here talks to Redis before the trigger fires: a transaction holds locks of the database, and
must neither wait for another server nor fail with it. That a job is not loaded is known only then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from celery import Celery, Task
from celery.app import app_or_default
from celery.local import maybe_evaluate
from kombu.utils.json import dumps, loads

from supervisor.catalog.guards import GuardedCall
from supervisor.errors import NotConfigured
from supervisor.job.run_ids import manual_id
from supervisor.job.secrets import masked
from supervisor.job.templates import checked_key
from supervisor.ledger.run_request import RunRequest
from supervisor.logs import get_logger
from supervisor.sending.app_settings import required_settings, settings_of
from supervisor.sending.calls import (
    check_arguments,
    dumped,
    is_guarded_call,
    request_of,
    spec_of,
)
from supervisor.sending.content import as_json
from supervisor.sending.publisher import publisher_of
from supervisor.sending.starting import options_of_caller

log = get_logger("supervisor.features")

Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PendingTrigger:
    run_id: str

    fields: Mapping[str, Any]
    """What it takes to ask for the same run by hand."""

    send: Callable[[], object]

    def fire(self) -> None:
        """Never raises an Exception: the database has committed, and a caller that saw an error
        would repeat the work."""
        try:
            self.send()
        except Exception as error:  # noqa: BLE001 - without a traceback, whose variables have secrets
            log.error("trigger failed", run=self.run_id, **self.fields, error=repr(error))


def trigger_of(
    job_or_task: str | Task[Any, Any],
    args: Args,
    kwargs: Kwargs,
    app: Celery | None,
    options: Mapping[str, Any],
) -> PendingTrigger:
    """Raises NotConfigured, InvalidGuard, InvalidKey, and TypeError."""
    if isinstance(job_or_task, str):
        return trigger_of_job(job_or_task, args, kwargs, supervised(app), options)
    if not isinstance(job_or_task, Task):
        raise TypeError(f"{job_or_task!r} is neither the name of a job nor a task")
    if app is not None:
        raise TypeError("`app` is for a job that is named; a task has its own")
    return trigger_of_task(maybe_evaluate(job_or_task), args, kwargs, options)


def trigger_of_job(
    job: str, args: Args, kwargs: Kwargs, app: Celery, options: Mapping[str, Any]
) -> PendingTrigger:
    args, kwargs = as_sent(job, args, kwargs)
    guard = GuardedCall.of(options, job)
    run_id = manual_id(job)
    request = RunRequest(
        run_id=run_id,
        args=as_json(args),
        kwargs=as_json(kwargs),
        key=None if guard.key is None else checked_key(guard.key),
        overlap=guard.overlap,
        max_wait=guard.max_wait,
    )
    fields = {"job": job, "args": args, "kwargs": kwargs, "options": options}
    return PendingTrigger(run_id, fields, partial(trigger_job, app, job, request))


def trigger_of_task(
    task: Any, given: Args, given_kwargs: Kwargs, options: Mapping[str, Any]
) -> PendingTrigger:
    required_settings(task.app)
    args, kwargs = as_sent(task.name, *dumped(task, given or (), given_kwargs or {}))
    options = dict(options)
    guarded = is_guarded_call(task, options)
    run_id = options.pop("task_id", None) or (manual_id(task.name) if guarded else str(uuid4()))
    check_arguments(task, args, kwargs)
    if guarded:
        request_of(task, args, kwargs, run_id, options).lock_for(spec_of(task))
    shown = partial(masked, spec_of(task).mask if guarded else False)
    fields = {"task": task.name, "args": shown(args), "kwargs": shown(kwargs), "options": options}
    send = partial(task.apply_async, args, kwargs, task_id=run_id, **options)
    return PendingTrigger(run_id, fields, send)


def trigger_job(app: Celery, job: str, request: RunRequest) -> None:
    """What `supervisor trigger` does, and sends the message without waiting for beat."""
    publisher = publisher_of(app)
    ledger, spec = publisher.ledger, publisher.ledger.spec(job)
    request = replace(request, options=options_of_caller(publisher, spec))
    admission = ledger.admit_request(spec, request)
    publisher.publish(admission.to_publish)


def supervised(app: Celery | None) -> Celery:
    named, app = app, app_or_default(app)
    if settings_of(app) is None and named is None:
        raise NotConfigured(
            f"celery.current_app, here {app.main!r}, is not supervised: pass `app`"
            " (a thread has another one than the module that made the app)"
        )
    required_settings(app)
    return app


def as_sent(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments as the run will get them: a copy, so that later changes have no effect."""
    if not isinstance(args, list | tuple | None) or not isinstance(kwargs, Mapping | None):
        raise TypeError(f"{name!r}: `args` is a list or a tuple, `kwargs` a mapping")
    try:
        args, kwargs = loads(dumps([args, kwargs and dict(kwargs)]))
    except (TypeError, ValueError) as error:
        hint = "a row is passed by its primary key"
        raise TypeError(f"the arguments of {name!r}: {error}; {hint}") from error
    return (None if args is None else tuple(args)), kwargs
