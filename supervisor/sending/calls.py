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
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import structlog
from celery import Celery, Task
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware

from supervisor.errors import InvalidGuard
from supervisor.execution.context import current_run
from supervisor.execution.delivery import GUARD, HEADER, work_of
from supervisor.files.guarded import GuardedCall, guarded_task_spec
from supervisor.job.guarded_spec import GuardedTaskSpec
from supervisor.job.lock_keys import lock_key
from supervisor.ledger.replies import Admission, Placement
from supervisor.ledger.requests import Asked, RunRequest
from supervisor.runs.run import is_below
from supervisor.sending.lineage import lineage
from supervisor.sending.publisher import Publisher, as_json, publisher_of
from supervisor.sending.tracing import current_headers

#: Celery's options of a call that each message of a run has anew.
MESSAGES_OWN = ("task_id", "retries", "expires", "time_limit", "soft_time_limit")

log = structlog.get_logger("supervisor.calls")


class GuardedResult(AsyncResult):  # type: ignore[type-arg]
    """Celery's result of a call, and the place that the guard gave its run."""

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
    register(publisher, task)
    admission = publisher.ledger.admit_request(spec_of(task), request)
    if admission.placement is Placement.START:
        publisher.publish([admission.run_id])
    if admission.placement is Placement.SKIP:
        task.backend.mark_as_revoked(
            admission.run_id,
            f"skipped: {admission.reason}",
            request=context_of(admission.run_id, options),
        )
    return GuardedResult(admission, task, is_ignored=is_ignored(task, options))


def context_of(run_id: str, options: Mapping[str, Any]) -> Context:
    """What a worker would know of a call that never gets there: of which group or chord it is.

    So a chord hears of it, and its body fails in place of waiting for ever.
    """
    of_canvas = {key: options.get(key) for key in ("chord", "group_index", "root_id", "parent_id")}
    return Context(id=run_id, group=options.get("group_id"), **of_canvas)


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
    if task_id and is_below(task_id):
        raise InvalidGuard(task.name, [f"{task_id!r} as an id is that of a step of a run"])
    at_work = current_run()
    if at_work is not None and task_id == at_work.run_id:
        what = "a run cannot be replaced by a guarded call, which is a run of its own: call it"
        raise InvalidGuard(task.name, [what])
    expires = until(task.app, options.pop("expires", None))
    headers = {**current_headers(), **(options.pop("headers", None) or {})}
    said = GuardedCall.of(headers.pop(GUARD, None), task.name)
    return RunRequest(
        run_id=task_id,
        args=as_json(args),
        kwargs=as_json(kwargs),
        key=said.key or key_of(task, spec, args, kwargs),
        overlap=said.overlap,
        max_wait=said.max_wait,
        expires=expires,
        delay=until(task.app, options.pop("eta", None) or options.pop("countdown", None))
        or timedelta(),
        options=as_json(
            {
                **lineage(task.app),
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


def register(publisher: Publisher, task: Any) -> None:
    """The ledger knows the task from then on, as a job without a schedule.

    With each call: it may have forgotten the task with all its data.
    """
    publisher.ledger.register(spec_of(task))


def register_all(app: Celery) -> None:
    """Makes the guarded tasks known before anybody calls them: their metrics start at 0."""
    for task in app.tasks.values():
        if not getattr(task, "guard", None):
            continue
        try:
            register(publisher_of(app), task)
        except InvalidGuard as error:  # its calls are refused; the other tasks work
            log.error("guard invalid", task=task.name, problems=error.problems)


def key_of(
    task: Any, spec: GuardedTaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The spec's template, filled with the arguments under the names the task has for them."""
    if spec.key is None:
        return None
    bound = inspect.signature(task.run).bind(*args, **kwargs)
    bound.apply_defaults()
    return lock_key(spec.key, job=spec.name, task=spec.work, kwargs=bound.arguments)


def until(app: Celery, moment: Any) -> timedelta | None:
    """How long from now until an instant (ISO text too), or in so many seconds; never negative.

    An instant without an offset is UTC, as Celery reads it, whatever the app's zone.
    """
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = maybe_iso8601(moment)
    if isinstance(moment, datetime):
        return max(timedelta(), maybe_make_aware(moment, app.timezone) - datetime.now(UTC))
    return max(timedelta(), timedelta(seconds=float(moment)))


def asked_of(header: Mapping[str, Any], request: Context) -> Asked:
    """What the caller of a run said, found in the message that a worker has of it.

    Nothing of a tick's run, and no arguments that are the schedule file's own.
    """
    if work_of(header, "").is_tick:
        return Asked()
    references = header.get("references", ())
    options = {
        key: value
        for key, value in {**request.as_execution_options(), **priority_of(request)}.items()
        if value is not None and key not in MESSAGES_OWN
    }
    headers = {k: v for k, v in options.pop("headers", {}).items() if k != HEADER}
    return Asked(
        args=None if "args" in references else as_json(request.args),
        kwargs=None if "kwargs" in references else as_json(request.kwargs),
        options=as_json({**options, **({"headers": headers} if headers else {})}),
        references=[name for name in references if "." in name],
    )


def priority_of(request: Context) -> dict[str, Any]:
    return {"priority": (request.delivery_info or {}).get("priority")}


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a message sent by another process can have, too."""
    return {key: value for key, value in options.items() if key not in ("producer", "connection")}
