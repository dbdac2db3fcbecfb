"""Puts the tasks of an app that have a `guard` under it: calls of them are runs (calls.py).

A task is put under it when it is made; all others keep Celery's class, or their app's own. What
happens while a task is run is for a worker alone (worker/task.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from celery import Celery, Task
from celery.app.registry import TaskRegistry
from celery.result import EagerResult

from supervisor.catalog.fitness import guard_in_code
from supervisor.sending.calls import call_guarded, is_guarded_call

#: The id of a task that Celery itself sends again.
_sent_again: ContextVar[str | None] = ContextVar("supervisor_sent_again", default=None)


class GuardedCalls(Task):  # type: ignore[type-arg]
    """Comes after a task's own class, whose `apply_async` and `retry` are called first."""

    abstract = True

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Celery's own signature; the call of a guarded task is a run."""
        named = {"link": link, "link_error": link_error, "shadow": shadow}
        is_sent_again = task_id is not None and task_id == _sent_again.get()
        if is_guarded_call(self, options) and not is_sent_again:
            options |= given(**named)
            return call_guarded(self, tuple(args or ()), dict(kwargs or {}), task_id, options)
        # A project's own class may take nothing but the task's arguments by position.
        options |= given(task_id=task_id, producer=producer, **named)
        result: Any = super().apply_async(args, kwargs, **options)
        if isinstance(result, EagerResult):  # run in place: code that looks at its place finds none
            vars(result).update(admission=None, was_skipped=False)
        return result

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Celery itself sends the task again, without the guard, which it does not have now."""
        options |= given(exc=exc, eta=eta, countdown=countdown, max_retries=max_retries)
        with sent_again(self.request.id):
            return super().retry(args, kwargs, throw=throw, **options)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, without those that are None."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def sent_again(task_id: str | None) -> Iterator[None]:
    """Celery's own retry calls the task again, under the same id."""
    before = _sent_again.set(task_id)
    try:
        yield
    finally:
        _sent_again.reset(before)


class AdoptsGuarded(TaskRegistry):
    """An app's registry: every task enters it when it is made, even if the app never finalizes."""

    def __setitem__(self, name: str, task: Any) -> None:
        super().__setitem__(name, task)
        adopt_if_guarded(task)


def adopt_guarded(app: Celery) -> None:
    """Puts the app's tasks with a `guard` under it: those it has, and those it will have."""
    registry: Any = app._tasks  # type: ignore[attr-defined]
    own = type(registry)
    if not issubclass(own, AdoptsGuarded):
        registry.__class__ = type(own.__name__, (AdoptsGuarded, own), {})
    for task in list(registry.values()):
        adopt_if_guarded(task)


def adopt_if_guarded(task: Any) -> None:
    own = type(task)
    if guard_in_code(task) is not None and not issubclass(own, GuardedCalls):
        bases = (own, GuardedCalls)
        task.__class__ = type(own.__name__, bases, {"__module__": own.__module__})
