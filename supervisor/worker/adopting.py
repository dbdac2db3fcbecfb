"""Puts tasks under the guard: those with a `guard`, and those of jobs.

All others keep Celery's class, or their app's own. A task with a `guard` is put under it when it is
made, since calls of it are runs. One that is a job's looks like any other, and may become one by an
edit of a schedule file: a process puts it under the guard when it is to run it first.
"""

from __future__ import annotations

import socket
from functools import cache
from typing import Any

from celery import Celery, current_app
from celery.app import trace
from celery.app.registry import TaskRegistry
from kombu.serialization import prepare_accept_content

from supervisor.sending.calls import guard_in_code
from supervisor.worker.results import take_over_started
from supervisor.worker.task import GuardedCalls, GuardedTask


class AdoptsGuarded(TaskRegistry):
    """Of an app's tasks; all come to it when they are made, also of an app that never finalizes."""

    def __setitem__(self, name: str, task: Any) -> None:
        super().__setitem__(name, task)
        adopt_if_guarded(task)


def adopt_guarded(app: Celery) -> None:
    """The tasks with a `guard` that the app has, and those it will have."""
    registry: Any = app._tasks  # type: ignore[attr-defined]
    own = type(registry)
    if not issubclass(own, AdoptsGuarded):
        registry.__class__ = type(own.__name__, (AdoptsGuarded, own), {})
    for task in list(registry.values()):
        adopt_if_guarded(task)


def adopt_if_guarded(task: Any) -> None:
    if guard_in_code(task) is not None:
        adopt(task)


def adopt(task: Any) -> None:
    own = type(task)
    if not issubclass(own, GuardedTask):
        bases = (GuardedTask, own, GuardedCalls)
        task.__class__ = type(own.__name__, bases, {"__module__": own.__module__})


def trace_run(
    name: str, uuid: str, request: Any, body: Any, content_type: Any, encoding: Any, **_: Any
) -> Any:
    """What the pool calls for a run, in the place of Celery's own function for a task.

    Runs are JSON, whatever else the app takes.
    """
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    hostname = request.get("hostname") or socket.gethostname()
    prepare_to_run(app.tasks[name], hostname)
    accepted = prepare_accept_content([*app.conf.accept_content, "json"])
    known = [app.tasks, accepted, hostname]
    return trace.fast_trace_task(name, uuid, request, body, content_type, encoding, _loc=known)


@cache
def prepare_to_run(task: Any, hostname: str) -> None:
    adopt(task)
    take_over_started(task)
    # Looked up when it is called: Sentry and others put theirs in its place.
    task.__trace__ = trace.build_tracer(task.name, task, task.app.loader, hostname, app=task.app)
