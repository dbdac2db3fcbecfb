"""Brings tasks with classes of an app's own under the guard."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task

from supervisor.worker.tasks import GuardedTask


def adopt(app: Celery) -> None:
    """Also those with a base class that is not the app's."""
    for task in app.tasks.values():
        if not isinstance(task, GuardedTask):
            task.__class__ = guarded_over(type(task))


def guarded_over(own: Any, **attributes: Any) -> Any:
    """The guard's hooks over a task class of an app's own, whose Request and guard are kept."""
    if own.Request != Task.Request:
        attributes["Request"] = own.Request
    if getattr(own, "guard", None) is not None:
        attributes["guard"] = own.guard
    return type(own.__name__, (GuardedTask, own), {"__module__": own.__module__, **attributes})
