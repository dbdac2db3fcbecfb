"""The content types of messages: runs are JSON, plain or signed. Others are the app's own business.

A pickle runs code while it is read, so what can write to the broker can run anything in a worker
that accepts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from celery import Celery

from supervisor.errors import UnsafeContent

#: Names and content types; `auth` is Celery's own envelope of signed content.
OF_RUNS = frozenset({"json", "application/json", "auth", "application/data"})

SETTINGS = (
    "accept_content",
    "result_accept_content",
    "task_serializer",
    "result_serializer",
    "event_serializer",
)


def serializer_of_runs(app: Celery, task: Any) -> str:
    """Of those that a task's messages have: its own where it is signed, else JSON."""
    own = getattr(task, "serializer", None) or app.conf.task_serializer
    return str(own) if own in OF_RUNS else "json"


def besides_json(app: Celery) -> list[str]:
    """Settings and tasks with which an app sends or takes anything else, in words."""
    conf = app.conf
    return [
        *(f"{name}={value!r}" for name in SETTINGS for value in others(conf.get(name))),
        *(
            f"{name} has serializer={value!r}"
            for name, task in sorted(app.tasks.items())
            for value in others(task.serializer)
            if value != conf.task_serializer
        ),
    ]


def others(given: str | Iterable[str] | None) -> Iterator[str]:
    names = [given] if isinstance(given, str) else given or ()
    return (name for name in names if name not in OF_RUNS)


def check_call(task: str, serializer: str | None) -> None:
    """Raises UnsafeContent."""
    if problems := [f"a call of {task!r} has serializer={name!r}" for name in others(serializer)]:
        raise UnsafeContent(problems)
