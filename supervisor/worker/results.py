"""What is stored of a running task in Celery's result backend, where it has one.

Celery stores STARTED before a delivery can be refused; here it is stored after `begin`. PROGRESS
comes from the reporter's thread, with a backend of its own (Celery keeps one for each thread,
unless one may be shared); the report is closed before Celery stores how the task
ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from celery import Celery, Task, states
from celery.backends.base import DisabledBackend
from celery.exceptions import SoftTimeLimitExceeded

from supervisor.guard.progress import Reporter
from supervisor.job.run import ReportedProgress
from supervisor.ledger.connection import connect_for_heartbeat
from supervisor.ledger.functions import Functions
from supervisor.ledger.keys import Keys
from supervisor.ledger.progress import Reports
from supervisor.logs import get_logger
from supervisor.sending.app_settings import required_settings

PROGRESS = "PROGRESS"

log = get_logger("supervisor.results")


#: Names of the tasks whose start Celery would store, with `task_track_started`.
_tracked: set[str] = set()


def take_over_started(task: Any) -> None:
    """From now on only `store_started` stores in this process that the task has started.

    Celery would before a delivery can be refused, over what is stored of the running attempt.
    """
    if task.track_started:
        task.track_started = False
        _tracked.add(task.name)


def store_started(task: Any, *, is_run: bool) -> None:
    """For every run, and else as Celery does; a backend that is unavailable fails no run."""
    if not (is_run or task.name in _tracked) or not keeps_results(task):
        return
    meta = {"pid": os.getpid(), "hostname": task.request.hostname}
    try:
        task.backend.store_result(task.request.id, meta, states.STARTED, request=task.request)
    except SoftTimeLimitExceeded:
        raise
    except Exception:  # each backend has errors of its own
        log.exception("start not stored", run=task.request.id)


def publisher_of_progress(task: Any) -> Callable[[ReportedProgress], None] | None:
    if not keeps_results(task):
        return None
    request = task.request  # of this thread: the reporter's knows no request

    def publish(said: ReportedProgress) -> None:
        meta = {"current": said.done, "total": said.total, "text": said.text}
        task.backend.store_result(request.id, meta, PROGRESS, request=request)

    return publish


def keeps_results(task: Task[Any, Any]) -> bool:
    # A message may say otherwise than its task.
    ignored = vars(task.request).get("ignore_result")
    return not isinstance(task.backend, DisabledBackend) and not (
        task.ignore_result if ignored is None else ignored
    )


@cache
def reporter_of(app: Celery, pid: int) -> Reporter:
    """One a process: a child makes its own."""

    def connect() -> Reports:
        settings = required_settings(app)
        client, keys = connect_for_heartbeat(settings), Keys(settings.prefix)
        return Reports(client, keys, Functions(client, keys))

    return Reporter(connect)
