"""Brings tasks with classes of an app's own under the guard."""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery import Celery, Task

from supervisor.worker.task import GuardedTask


def adopt(app: Celery) -> None:
    """Also tasks whose base class is not the app's, or keeps the guard's `__call__` out."""
    for task in app.tasks.values():
        adopt_one(task)


def adopt_one(task: Any) -> None:
    if not isinstance(task, GuardedTask):
        task.__class__ = guarded_over(type(task))
    elif not is_ours(type(task).__call__):
        task.__class__ = entered_first(type(task))


def adopt_from_the_beginning(app: Celery) -> None:
    """Tasks yet to come: a program that only calls them may never finalize its app."""
    if "Task" in vars(app) and not issubclass(app.Task, GuardedTask):
        app.Task = guarded_over(app.Task, abstract=True)  # type: ignore[misc]
    # All decorators come to it, also `shared_task`.
    make, register = app._task_from_fun, app.register_task

    @wraps(make)
    def task_from_fun(
        fun: Any, name: Any = None, base: Any = None, *more: Any, **options: Any
    ) -> Any:
        if base is not None and not issubclass(base, GuardedTask):
            base = guarded_over(base)
        return make(fun, name, base, *more, **options)

    @wraps(register)
    def register_task(task: Any, **options: Any) -> Any:
        registered = register(task, **options)
        adopt_one(registered)
        return registered

    app._task_from_fun = task_from_fun  # type: ignore[method-assign]
    app.register_task = register_task  # type: ignore[method-assign]


def guarded_over(own: Any, **attributes: Any) -> Any:
    """The guard's hooks over a task class of an app's own, whose Request and guard are kept."""
    if own.Request != Task.Request:
        attributes["Request"] = own.Request
    if getattr(own, "guard", None) is not None:
        attributes["guard"] = own.guard
    return type(own.__name__, (GuardedTask, own), {"__module__": own.__module__, **attributes})


def entered_first(own: Any) -> Any:
    """Over a task class whose own `__call__` may call `run` alone: the guard comes first."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._enter(own.__call__.__get__(self), args, kwargs)

    return type(own.__name__, (own,), {"__module__": own.__module__, "__call__": call})


def is_ours(call: Any) -> bool:
    return call.__module__ in (__name__, GuardedTask.__module__)
