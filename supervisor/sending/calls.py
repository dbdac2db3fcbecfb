"""A guarded task that code calls: its run is admitted first, its message sent when it may begin.

1. ``@app.task(guard={"overlap": "queue_one", "key": "import:{feed_url}"})`` puts a task under the
   guard; the keys are those of a schedule file's job, without the schedule.
2. ``task.apply_async(args, headers={"guard": {...}})`` says for one call: ``key`` (the lock's key
   itself), ``overlap``, ``max_wait``. The header alone guards a call of any supervised task. The
   task's own arguments stay what they are.
3. The ledger gives the run its place. One that waits is no message yet: it occupies no worker, and
   is published by the worker that gives the lock back, or by beat. So is one with a `countdown`.
4. What comes back is Celery's AsyncResult, with the `admission` on it.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import structlog
from celery import Celery, Task
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.compression import get_encoder

from supervisor.errors import InvalidGuard, UnknownRun
from supervisor.files.job_checks import GuardedCall, guarded_task_spec
from supervisor.guard.current_run import current_run
from supervisor.guard.delivery import GUARD, HEADER, RETURNED_BY, of_job, work_of
from supervisor.job.lock_keys import lock_key
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import Run, RunState, is_below, manual_id
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.ledger.connection import RedisError, connect_for_heartbeat
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Admission, Placement
from supervisor.ledger.requests import Asked, Message, RunRequest
from supervisor.sending import content
from supervisor.sending.app_settings import required_settings
from supervisor.sending.messages import is_ordinary, recorded
from supervisor.sending.publisher import Publisher, as_json, publisher_of
from supervisor.sending.tracing import current_headers
from supervisor.times import LONGEST_SECONDS

# Celery's result of a guarded call, and the place that the guard gave its run.


#: For how long the end of a run is waited for whose result is there, and how often looked at.
PATIENCE_SECONDS = 1.0
LOOK_SECONDS = 0.005


class GuardedResult(AsyncResult):  # type: ignore[type-arg]
    def __init__(
        self, admission: Admission, task: Task[Any, Any], *, is_ignored: bool = False
    ) -> None:
        super().__init__(admission.run_id, app=task.app, backend=task.backend)
        self.admission = admission
        self.ignored = is_ignored

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is Celery's own result: what was decided is the caller's to keep."""
        return AsyncResult, self.__reduce_args__()

    def __copy__(self) -> AsyncResult[Any]:
        return AsyncResult(*self.__reduce_args__())

    @property
    def was_skipped(self) -> bool:
        return self.admission.placement is Placement.SKIP

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's own; with its result, the run no longer holds its lock.

        Celery stores a result before the run's end is reported, so that the next call might still
        be skipped for it. That end is waited for as well; `timeout` is for the result.
        """
        try:
            return super().get(*args, **kwargs)
        finally:
            if self._cache and not self.was_skipped:  # type: ignore[attr-defined]
                wait_for_end(self.app, self.id)

    wait = get


def result_of(admission: Admission, task: Task[Any, Any], *, is_ignored: bool) -> GuardedResult:
    result: GuardedResult = result_class(task)(admission, task, is_ignored=is_ignored)
    return result


@cache
def result_class(task: Any) -> Any:
    """With what a task's own class of results can do."""
    own: Any = type(task.AsyncResult("of no task"))
    return type(own.__name__, (GuardedResult, own), {})


def wait_for_end(app: Any, run_id: str) -> None:
    ledger, until = impatient_ledger(app, os.getpid()), time.monotonic() + PATIENCE_SECONDS
    with suppress(RedisError, UnknownRun):
        while ledger.run(run_id).state is RunState.RUNNING and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


@cache
def impatient_ledger(app: Celery, _pid: int) -> Ledger:
    """A server that hangs holds nobody up who has a result already."""
    settings = required_settings(app)
    return Ledger(connect_for_heartbeat(settings), Keys(settings.prefix))


# Of which task at work a call is part: what Celery's canvas and monitors know as root and parent.
#
# A run that waits is published by whoever gives its lock back, or by beat: neither is its parent.
# So the call takes down of whom it is a part, and its message is sent as if nobody were at work.


def lineage(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Celery's options of a call of the task made now, with these: nothing outside of a task."""
    parent: Any = task.app.current_worker_task
    if parent is None:
        return {}
    request = parent.request
    found = {"root_id": request.root_id or request.id, "parent_id": request.id}
    if task.app.conf.task_inherit_parent_priority and task.priority is None:
        # One that the call, the task or its route has is before the parent's.
        priority = (request.delivery_info or {}).get("priority")
        routed = task.app.amqp.router.route(dict(options), task.name)
        if priority is not None and routed.get("priority") is None:
            found["priority"] = priority
    return found


@contextmanager
def of_nobody() -> Iterator[None]:
    """What this thread sends meanwhile is no part of the task that it works for."""
    at_work = []
    while (task := _task_stack.pop()) is not None:
        at_work.append(task)
    try:
        yield
    finally:
        for task in reversed(at_work):
            _task_stack.push(task)


# The message of a run that is about to be asked for: sent by the script that admits the run.
#
# That takes one round trip, where to admit the run, to read it, to send its message and to say so
# takes five; and no crash comes in between. It can be told where the broker's queues are keys
# beside the ledger's, and nobody but Celery has a say in how the message is sent.
#
# Nothing here connects to anything: what it takes to know the broker is kept from the message that
# was last sent in the other way. The first call of a process goes that way, and with a broker that
# is away none waits for it in vain.


log = structlog.get_logger("supervisor.calls")


def message_of(publisher: Publisher, spec: JobSpec, request: RunRequest) -> Message | None:
    """None where the run is to be published once it is admitted. Raises InvalidKey."""
    rules, now = request.rules_for(spec), datetime.now(UTC)
    # One that replaces another is queued by what becomes of that one.
    may_replace = OverlapPolicy.REPLACE in (rules.overlap, rules.on_max_skips)
    if may_replace or request.delay or request.run_id is None or spec.task is None:
        return None
    channel = publisher.channel_beside
    if channel is None or not is_ordinary(publisher.app, spec.task):
        return None
    run = Run(
        *(request.run_id, spec.name, RunState.QUEUED, now, now),
        args=request.args,
        kwargs=request.kwargs,
        options=request.options,
        rules=rules,
    )
    try:
        with of_nobody():
            return recorded(publisher.app, channel, publisher.send, of_job(run, spec, spec.task))
    except Exception as error:  # noqa: BLE001 - who publishes the run finds the same, and says so
        publisher.channel_beside = None  # it may be its connection, which is found anew then
        log.info("no message beforehand", job=spec.name, error=str(error))
        return None


# What a call of a task asks of the ledger, from what its caller said.


#: Celery's options of a call that each message of a run has anew.
MESSAGES_OWN = ("task_id", "retries", "expires")


def request_of(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> RunRequest:
    """What the call asks of the ledger. Raises InvalidGuard, InvalidKey and TypeError."""
    check_arguments(task, args, kwargs)
    args, kwargs = dumped(task, args, kwargs)
    options, spec = dict(options), spec_of(task)
    task_id = str(task_id) if task_id else None  # Celery takes a UUID
    if task_id and is_below(task_id):
        raise InvalidGuard(task.name, [f"{task_id!r} as an id is that of a step of a run"])
    at_work = current_run()
    if at_work is not None and task_id == at_work.run_id:
        what = "a run cannot be replaced by a guarded call, which is a run of its own: call it"
        raise InvalidGuard(task.name, [what])
    check_content(task, options)
    expires = until(options.pop("expires", task.expires))
    headers = {**current_headers(), **(options.pop("headers", None) or {})}
    said = GuardedCall.of(headers.pop(GUARD, None), task.name)
    return RunRequest(
        run_id=task_id or manual_id(task.name),
        args=as_json(args),
        kwargs=as_json(kwargs),
        key=said.key or key_of(task, spec, args, kwargs),
        overlap=said.overlap,
        max_wait=said.max_wait,
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
    )


def is_awaited(task: Any, options: Mapping[str, Any]) -> bool:
    """Whether somebody may wait for the result of the call: alone, or in a chord."""
    if isinstance(task.backend, DisabledBackend):
        return False
    return bool(options.get("chord")) or not is_ignored(task, options)


def is_ignored(task: Any, options: Mapping[str, Any]) -> bool:
    said = options.get("ignore_result")
    return bool(task.ignore_result if said is None else said)


def check_content(task: Any, options: Mapping[str, Any]) -> None:
    """What no worker could read would hold the lock. Raises UnsafeContent and InvalidGuard."""
    wrong = content.others(options.get("serializer"))
    content.refuse(f"a call of {task.name!r} has serializer={name!r}" for name in wrong)
    try:
        get_encoder(options.get("compression") or "gzip")
    except KeyError as error:
        raise InvalidGuard(task.name, [f"there is no compression {error}"]) from None


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
    return guarded_task_spec(task.name, {} if task.guard in (None, True) else task.guard)


def key_of(
    task: Any, spec: GuardedTaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The spec's template, filled with the arguments under the names the task has for them."""
    if spec.key is None:
        return None
    bound = inspect.signature(task.run).bind(*args, **kwargs)
    bound.apply_defaults()
    return lock_key(spec.key, job=spec.name, task=spec.work, kwargs=bound.arguments)


def until(moment: Any) -> timedelta | None:
    """How long from now until an instant (ISO text too), or in so many seconds; never negative.

    An instant without an offset is UTC, as Celery reads it in whatever zone app and machine are.
    What lies beyond the longest duration of schedule files is as far as that.
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


def asked_of(header: Mapping[str, Any], request: Context, task: Any) -> Asked:
    """What the caller of a run said, found in the message that a worker has of it.

    Nothing of a tick's run, and no arguments that are the schedule file's own.
    """
    if work_of(header, "").is_tick:
        return Asked()
    references = header.get("references", ())
    said = {
        **request.as_execution_options(),
        "priority": (request.delivery_info or {}).get("priority"),
        "ignore_result": request.ignore_result,
        "queue": header["queue"],
    }
    options = {k: v for k, v in said.items() if v is not None and k not in MESSAGES_OWN}
    passed_on = options.pop("headers", {})
    headers = {k: v for k, v in passed_on.items() if k not in (HEADER, RETURNED_BY)}
    return Asked(
        args=None if "args" in references else as_json(request.args),
        kwargs=None if "kwargs" in references else as_json(request.kwargs),
        options=as_json({**options, **({"headers": headers} if headers else {})}),
        references=[place for place in references if not isinstance(place, str)],
        is_awaited=is_awaited(task, options),
        code=spec_text(task) if header["job"] == task.name else "",
    )


def spec_text(task: Any) -> str:
    try:
        return spec_of(task).model_dump_json(exclude_defaults=True)
    except InvalidGuard:  # its calls are refused; a header may have guarded this one
        return ""


def given(**options: Any) -> dict[str, Any]:
    """Those of the options that somebody gave."""
    return {name: value for name, value in options.items() if value is not None}


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a message sent by another process can have, too."""
    return {key: value for key, value in options.items() if key not in ("producer", "connection")}


def is_guarded_call(task: Any, options: Mapping[str, Any]) -> bool:
    headers = options.get("headers") or {}
    if HEADER in headers or task.app.conf.task_always_eager:
        return False
    return bool(task.guard) or GUARD in headers


def call_guarded(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: dict[str, Any],
) -> GuardedResult:
    """Raises InvalidGuard, InvalidKey, TypeError for arguments the task refuses, and what redis-py
    raises when the ledger is away.

    A call that raises the latter may have been recorded, and then its run will start. Whoever wants
    to call again gives a `task_id` from the beginning: under the same one there is one run.
    """
    request = request_of(task, args, kwargs, task_id, options)
    publisher = publisher_of(task.app)
    message = message_of(publisher, spec_of(task), request)
    request = replace(request, is_of_code=True, message=message)
    admission = publisher.ledger.admit_request(spec_of(task), request)
    result = result_of(admission, task, is_ignored=is_ignored(task, options))
    if admission.placement is Placement.START and message is None:
        publisher.publish([admission.run_id])
    elif admission.placement is not Placement.SKIP:
        add_to_parent(task, result, options)
    if admission.placement is Placement.SKIP and request.is_awaited:
        revoke_skipped(task, admission, options)
    return result


def revoke_skipped(task: Any, admission: Admission, options: Mapping[str, Any]) -> None:
    """For callers that wait for the result; a backend that is unavailable fails no call."""
    try:
        reason = f"skipped: {admission.reason}"
        revoke(task.backend, admission.run_id, reason, options, task.app.thread_oid)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - each backend has errors of its own
        log.error("revocation not sent", job=admission.job, run=admission.run_id, error=repr(error))


def add_to_parent(task: Any, result: AsyncResult[Any], options: Mapping[str, Any]) -> None:
    """As Celery does when it sends a message from within a task."""
    parent: Any = task.app.current_worker_task
    if parent is not None and options.get("add_to_parent", True):
        parent.add_trail(result)


def revoke(
    backend: Any, run_id: str, reason: str, options: Mapping[str, Any], caller: str | None = None
) -> None:
    """Records in a result backend that a call ended before it began. Raises what the backend does.

    The context is what a worker would know of the call: who waits, of which group or chord. So a
    chord hears of it, and its body fails in place of waiting for ever.
    """
    known = {key: options.get(key) for key in ("chord", "group_index", "root_id", "parent_id")}
    known["reply_to"] = options.get("reply_to") or caller
    context = Context(id=run_id, group=options.get("group_id"), **known)
    backend.mark_as_revoked(run_id, reason, request=context)


def register_all(app: Celery) -> None:
    """Makes the guarded tasks known before anybody calls them: their metrics start at 0."""
    for task in app.tasks.values():
        if not getattr(task, "guard", None):
            continue
        try:
            publisher_of(app).ledger.register(spec_of(task))
        except InvalidGuard as error:  # its calls are refused; the other tasks work
            log.error("guard invalid", task=task.name, problems=error.problems)
