"""Of which task at work a call is part: what Celery's canvas and monitors know as root and parent.

A run that waits is published by whoever gives its lock back, or by beat: neither is its parent. So
the call takes down of whom it is a part, and its message is sent as if nobody were at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery._state import _task_stack  # type: ignore[attr-defined]


def lineage(app: Celery) -> dict[str, Any]:
    """Celery's options of a call made now: nothing outside of a task."""
    parent: Any = app.current_worker_task
    if parent is None:
        return {}
    request = parent.request
    priority = (request.delivery_info or {}).get("priority")
    inherited = app.conf.task_inherit_parent_priority and priority is not None
    return {
        "root_id": request.root_id or request.id,
        "parent_id": request.id,
        **({"priority": priority} if inherited else {}),
    }


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
