"""Calls of guarded tasks.

A call's run is admitted, and its message sent when it may begin:

1. ``@app.task(guard={"overlap": "queue_one", "key": "import:{feed_url}"})`` puts a task under the
   guard; the keys are those of a schedule file's job, without the schedule.
2. ``task.apply_async(args, headers={"guard": {...}})`` sets, for one call, ``key`` (the lock's key
   itself), ``overlap`` and ``max_wait``. With ``guard=False`` a task's calls are guarded where this
   header says so. The task's own arguments are not touched.
3. The message is made in the caller, and the ledger gives the run its place and keeps the message;
   of a broker elsewhere, the headers. That of a run that waits, or has a `countdown`, is sent when
   its time has come: until then it occupies no worker.
4. The caller gets Celery's AsyncResult, with the `admission` on it (results.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from celery.backends.base import DisabledBackend
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.compression import get_encoder

from supervisor.catalog.fitness import guard_in_code, has_own_strategy
from supervisor.catalog.guards import GuardedCall, guarded_task_spec
from supervisor.errors import InvalidGuard, InvalidKey
from supervisor.guard.current_run import current_run
from supervisor.guard.delivery import GUARD, HEADER
from supervisor.job.run_ids import is_below, manual_id
from supervisor.job.spec import GuardedTaskSpec
from supervisor.ledger.admission import Placement
from supervisor.ledger.run_request import RunRequest
from supervisor.logs import get_logger
from supervisor.sending.content import OF_RUNS, as_json
from supervisor.sending.context import headers_of_context
from supervisor.sending.messages import of_job, run_of
from supervisor.sending.publisher import Publisher, publisher_of
from supervisor.sending.queues import is_unavailable
from supervisor.sending.results import GuardedResult, result_class, revoke_skipped
from supervisor.sending.sender import NothingSent, destination
from supervisor.sending.templates import why_apart
from supervisor.times import LONGEST_SECONDS

log = get_logger("supervisor.calls")


def lineage(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by which Celery's canvas and monitors know the running task that makes a call.

    Empty outside of a task. They are recorded with the call: a message that is made later - after a
    retry with other arguments, or because the broker was away - is made by a process that is not
    its parent.
    """
    parent: Any = task.app.current_worker_task
    if parent is None:
        return {}
    request = parent.request
    inherited = {"root_id": request.root_id or request.id, "parent_id": request.id}
    own = spec_of(task).priority if task.priority is None else task.priority
    if task.app.conf.task_inherit_parent_priority and own is None:
        # A priority of the call, the guard, the task or its route wins over the parent's.
        priority = (request.delivery_info or {}).get("priority")
        routed = task.app.amqp.router.route(dict(options), task.name)
        if priority is not None and routed.get("priority") is None:
            inherited["priority"] = priority
    return inherited


def with_message(publisher: Publisher, spec: GuardedTaskSpec, request: RunRequest) -> RunRequest:
    """The request with the message of the call, made here and now by all code of the app that has a
    say in it; or with the headers that it gives, where Celery has to send it.

    Whatever it says of the caller - a tenant, a correlation id - each later message of the run says
    too. With neither if that code sends nothing now, or the broker is unavailable: then it is asked
    again when the run is to be sent. Raises InvalidKey, and what `apply_async` raises of Celery.
    """
    app = publisher.app
    assignment = of_job(run_of(spec, request, datetime.now(UTC)), spec, spec.name)
    try:
        if message := publisher.sender.message_of_call(assignment):
            return replace(request, message=message)
        if why_apart(app, spec.name) is None:  # no code of the app has a say in it
            destination(app, assignment)
            check_arguments(app.tasks[spec.name], assignment.args, assignment.kwargs)
            return request
        headers = as_json(publisher.sender.own_headers_of(assignment))
    except Exception as error:
        if not (isinstance(error, NothingSent) or is_unavailable(error)):
            raise
        publisher.sender.forget_channel()
        log.info("message not made", job=spec.name, error=str(error))
        return request
    return replace(request, options={**request.options, "headers": headers}) if headers else request


def request_of(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> RunRequest:
    """What the call asks of the ledger. Raises InvalidGuard, InvalidKey and TypeError."""
    args, kwargs = dumped(task, args, kwargs)
    options, spec = dict(options), spec_of(task)
    task_id = str(task_id) if task_id else None  # Celery takes a UUID
    if task_id and is_below(task_id):
        raise InvalidGuard(
            f"a call of task {task.name!r}", [f"{task_id!r} as an id is that of a step of a run"]
        )
    at_work = current_run()
    if at_work is not None and task_id == at_work.run_id:
        what = "a run cannot be replaced by a guarded call, which is a run of its own: call it"
        raise InvalidGuard(f"a call of task {task.name!r}", [what])
    check_content(task, options)
    expires = until(options.pop("expires", task.expires))
    headers = {**headers_of_context(), **(options.pop("headers", None) or {})}
    guard = GuardedCall.of(headers.pop(GUARD, None), task.name)
    if misplaced := sorted(GuardedCall.model_fields.keys() & options.keys()):
        what = f"{misplaced[0]!r} belongs in headers={{'guard': {{{misplaced[0]!r}: ...}}}}"
        raise InvalidGuard(f"a call of task {task.name!r}", [what])
    return RunRequest(
        run_id=task_id or manual_id(task.name),
        args=as_json(args),
        kwargs=as_json(kwargs) if kwargs else {},
        key=guard.key or key_of(task, spec, args, kwargs),
        overlap=guard.overlap,
        max_wait=guard.max_wait,
        expires=expires,
        delay=until(options.pop("eta", None) or options.pop("countdown", None)) or timedelta(),
        options=as_json(
            {
                **lineage(task, options),
                **sendable(options),
                **({"headers": headers} if headers else {}),
            }
        ),
        is_awaited=is_awaited(task, options),
        is_of_code=True,
    )


def is_awaited(task: Any, options: Mapping[str, Any]) -> bool:
    """Whether a caller may wait for the call's result, by itself or in a chord."""
    if isinstance(task.backend, DisabledBackend):
        return False
    return bool(options.get("chord")) or not is_ignored(task, options)


def is_ignored(task: Any, options: Mapping[str, Any]) -> bool:
    own = options.get("ignore_result")
    return bool(task.ignore_result if own is None else own)


def check_content(task: Any, options: Mapping[str, Any]) -> None:
    """A call that no worker can read would hold the lock. Raises InvalidGuard."""
    serializer = options.get("serializer")
    if serializer and serializer not in OF_RUNS:
        what = f"messages of runs are JSON: leave serializer={serializer!r} out"
        raise InvalidGuard(f"a call of task {task.name!r}", [what])
    try:
        get_encoder(options.get("compression") or "gzip")
    except KeyError as error:
        raise InvalidGuard(
            f"a call of task {task.name!r}", [f"there is no compression {error}"]
        ) from None


def check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that the task refuses, as Celery's own `apply_async`."""
    if task.typing and hasattr(task, "__header__"):
        task.__header__(*args, **kwargs)


def dumped(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a task with `pydantic=True` as they are sent, which takes Celery 5.7."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump else (args, kwargs)


@cache
def spec_of(task: Any) -> GuardedTaskSpec:
    """Raises InvalidGuard."""
    return checked_spec(task).kept_apart(task.app.supervisor["prefix"])


def checked_spec(task: Any) -> GuardedTaskSpec:
    """The guard in the task's code. Raises InvalidGuard, also for a `key` of other parameters."""
    where = f"the guard of task {task.name!r}"
    if has_own_strategy(task):
        raise InvalidGuard(where, ["the task has a Strategy of its own: leave its guard out"])
    guard = guard_in_code(task)
    spec = guarded_task_spec(task.name, guard if guard not in (None, True, False) else {})
    try:
        if spec.key is not None:
            spec.lock_for((), dict.fromkeys(parameters_of(task).parameters, "any"))
    except InvalidKey as error:
        raise InvalidGuard(where, [f"'key': {error}"]) from error
    return spec


@cache
def parameters_of(task: Any) -> inspect.Signature:
    return inspect.signature(task.run)


def key_of(
    task: Any, spec: GuardedTaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The spec's template, filled with the arguments by the names of the task's parameters."""
    if spec.key is None:
        return None
    bound = parameters_of(task).bind(*args, **kwargs)
    bound.apply_defaults()
    return spec.lock_for((), bound.arguments)


def until(moment: Any) -> timedelta | None:
    """The time from now until an instant (also as ISO text), or a number of seconds.

    Never negative, and no longer than the longest duration of schedule files. An instant without an
    offset is UTC, as Celery reads it whatever the zone of app and machine.
    """
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = maybe_iso8601(moment)
    if isinstance(moment, datetime):
        seconds = (maybe_make_aware(moment) - datetime.now(UTC)).total_seconds()
    else:
        seconds = float(moment)
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_SECONDS))


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a message can have that is sent by another process."""
    return {key: value for key, value in options.items() if key not in ("producer", "connection")}


def is_guarded_call(task: Any, options: Mapping[str, Any]) -> bool:
    headers, guard = options.get("headers") or {}, guard_in_code(task)
    if HEADER in headers or guard is None or task.app.conf.task_always_eager:
        return False
    return bool(guard) or GUARD in headers


def call_guarded(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: dict[str, Any],
) -> GuardedResult:
    """Raises InvalidGuard, InvalidKey, NoQueue, TypeError for arguments the task refuses, what code
    of the app raises that has a say in messages, and what redis-py raises when the ledger is
    unavailable.

    A call that raises the last may have been recorded, and then its run will start. To be able to
    call again, give a `task_id` from the beginning: calls with the same one make one run.
    """
    request = request_of(task, args, kwargs, task_id, options)
    publisher = publisher_of(task.app)
    request = with_message(publisher, spec_of(task), request)
    admission = publisher.ledger.admit_request(spec_of(task), request)
    result = result_class(task)(admission, task, is_ignored=is_ignored(task, options))
    publisher.publish(admission.to_publish)
    if admission.placement is not Placement.SKIP:
        add_to_parent(task, result, options)
    if admission.placement is Placement.SKIP and request.is_awaited:
        revoke_skipped(task, admission, options)
    return result


def add_to_parent(task: Any, result: AsyncResult[Any], options: Mapping[str, Any]) -> None:
    """Does what Celery does when a message is sent from within a task."""
    parent: Any = task.app.current_worker_task
    if parent is not None and options.get("add_to_parent", True):
        parent.add_trail(result)
