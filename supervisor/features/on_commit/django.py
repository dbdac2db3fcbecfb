"""Triggers that wait for the commit of Django's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery, Task
from django.db import transaction

from supervisor.features.on_commit.trigger import trigger_of


def trigger_on_commit(
    job_or_task: str | Task[Any, Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    using: str | None = None,
    app: Celery | None = None,
    **options: Any,
) -> str:
    """Triggers a run once the transaction has committed, at once outside of any.

    using: the database whose transaction it is. Returns the id that the run will have; everything
    else is as for a session of SQLAlchemy.
    """
    trigger = trigger_of(job_or_task, args, kwargs, app, options)
    transaction.on_commit(trigger.fire, using=using, robust=True)
    return trigger.run_id
