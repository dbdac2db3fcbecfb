"""What is stored of a running task in Celery's result backend, where it has one.

Celery stores STARTED before a delivery can be refused; here it is stored after `begin`. PROGRESS
comes from the reporter's thread, with a backend of its own (Celery keeps one for each thread,
unless one may be shared); the report is closed before Celery stores how the task ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from billiard.exceptions import WorkerLostError
from celery import Task, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.exceptions import SoftTimeLimitExceeded

from supervisor.job.reports import ReportedProgress
from supervisor.logs import get_logger

log = get_logger("supervisor.tasks")

PROGRESS = "PROGRESS"


def take_over_started(task: Any) -> None:
    """From now on only `store_started` stores in this process that the task has started.

    Celery would store it before a delivery can be refused, and overwrite the running attempt's.
    """
    if task.track_started:
        task.track_started, task.stores_started = False, True


def store_started(task: Any, request: Context, *, is_run: bool) -> None:
    """Stores it for every run, and for other tasks as Celery does. No run fails by its backend."""
    if not (is_run or task.stores_started) or not keeps_results(task, request):
        return
    meta = {"pid": os.getpid(), "hostname": request.hostname}
    try:
        task.backend.store_result(request.id, meta, states.STARTED, request=request)
    except SoftTimeLimitExceeded:
        raise
    except Exception:  # each backend has errors of its own
        log.exception("start not stored", run=request.id)


def store_lost(task: Any, request: Context) -> None:
    """The end of a run that was lost, for its caller, and for its chord.

    With `reject_on_worker_lost` Celery stores nothing of a child that died, as its message comes
    again. This is that message, and the run is not run again.
    """
    if not (task.acks_late and task.reject_on_worker_lost and keeps_results(task, request)):
        return
    try:
        if task.backend.get_state(request.id) not in states.READY_STATES:
            error = WorkerLostError("the run is lost: its worker's process died")
            task.backend.mark_as_failure(request.id, error, request=request)
    except SoftTimeLimitExceeded:
        raise
    except Exception:  # each backend has errors of its own
        log.exception("loss not stored", run=request.id)


def publisher_of_progress(task: Any) -> Callable[[ReportedProgress], None]:
    request = task.request  # of this thread: the reporter's knows no request

    def publish(progress: ReportedProgress) -> None:
        if keeps_results(task, request):
            meta = {"current": progress.done, "total": progress.total, "text": progress.text}
            task.backend.store_result(request.id, meta, PROGRESS, request=request)

    return publish


def keeps_results(task: Task[Any, Any], request: Context) -> bool:
    # A message may say otherwise than its task.
    ignored = vars(request).get("ignore_result")
    if task.ignore_result if ignored is None else ignored:
        return False
    return not isinstance(task.backend, DisabledBackend)
