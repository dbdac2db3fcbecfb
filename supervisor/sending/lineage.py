"""Of which task at work a call is part: what Celery's canvas and monitors know as root and parent.

A run that waits is published by whoever gives its lock back, or by beat: neither is its parent. So
the call takes down of whom it is a part, and its message is sent as if nobody were at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery._state import _task_stack  # type: ignore[attr-defined]


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
