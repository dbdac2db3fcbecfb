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

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog
from celery import Celery
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult

from supervisor.errors import InvalidGuard
from supervisor.execution.delivery import GUARD, HEADER
from supervisor.ledger.replies import Admission, Placement
from supervisor.sending.beforehand import message_of
from supervisor.sending.call_requests import is_ignored, request_of, spec_of
from supervisor.sending.call_results import GuardedResult, result_of
from supervisor.sending.publisher import publisher_of

log = structlog.get_logger("supervisor.calls")


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
        tell_of_skip(task, admission, options)
    return result


def tell_of_skip(task: Any, admission: Admission, options: Mapping[str, Any]) -> None:
    """Whoever waits for the result; a backend that is away fails no call."""
    said = f"skipped: {admission.reason}"
    try:
        context = context_of(admission.run_id, options, task.app.thread_oid)
        task.backend.mark_as_revoked(admission.run_id, said, request=context)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - each backend has errors of its own
        log.error("skip not told", job=admission.job, run=admission.run_id, error=repr(error))


def add_to_parent(task: Any, result: AsyncResult[Any], options: Mapping[str, Any]) -> None:
    """As Celery does when it sends a message from within a task."""
    parent: Any = task.app.current_worker_task
    if parent is not None and options.get("add_to_parent", True):
        parent.add_trail(result)


def context_of(run_id: str, options: Mapping[str, Any], caller: str | None = None) -> Context:
    """What a worker would know of a call that never gets there: who waits, of which group or chord.

    So a chord hears of it, and its body fails in place of waiting for ever.
    """
    known = {key: options.get(key) for key in ("chord", "group_index", "root_id", "parent_id")}
    known["reply_to"] = options.get("reply_to") or caller
    return Context(id=run_id, group=options.get("group_id"), **known)


def register_all(app: Celery) -> None:
    """Makes the guarded tasks known before anybody calls them: their metrics start at 0."""
    for task in app.tasks.values():
        if not getattr(task, "guard", None):
            continue
        try:
            publisher_of(app).ledger.register(spec_of(task))
        except InvalidGuard as error:  # its calls are refused; the other tasks work
            log.error("guard invalid", task=task.name, problems=error.problems)
