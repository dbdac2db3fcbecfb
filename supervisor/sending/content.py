"""The content types of a supervised app's messages: JSON, and signed JSON.

A pickle runs code while it is read, so what can write to the broker could run anything in every
worker. A setting that accepts or sends one ends the process that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery import Celery

from supervisor.errors import UnsafeContent

#: Names and content types; `auth` is Celery's own envelope of signed JSON.
ALLOWED = frozenset({"json", "application/json", "auth", "application/data"})

SETTINGS = (
    "accept_content",
    "result_accept_content",
    "task_serializer",
    "result_serializer",
    "event_serializer",
)


def check_settings(conf: Mapping[str, Any]) -> None:
    """Raises UnsafeContent."""
    refuse(f"{name}={value!r}" for name in SETTINGS for value in others(conf.get(name)))


def check_tasks(app: Celery) -> None:
    """Of tasks with a serializer of their own. Raises UnsafeContent."""
    refuse(
        f"task {name!r} has serializer={value!r}"
        for name, task in sorted(app.tasks.items())
        for value in others(task.serializer)
    )


def others(given: str | Iterable[str] | None) -> Iterator[str]:
    names = [given] if isinstance(given, str) else given or ()
    return (name for name in names if name not in ALLOWED)


def refuse(found: Iterable[str]) -> None:
    if problems := list(found):
        raise UnsafeContent(problems)
