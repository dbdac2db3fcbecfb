"""What is wrong with a row, in the words of `supervisor check`, each at the field it is about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.conf import settings

from supervisor import jobs
from supervisor.errors import JobElsewhere, SupervisorError
from supervisor.files.job_checks import JobFault
from supervisor.integrations.django.project import ledger, task_names
from supervisor.ledger.connection import RedisError

#: The source of a row's job.
SOURCE = "django"

Messages = dict[str, list[str]]


def messages_by_field(
    name: str, keys: Mapping[str, Any], more: Any, columns: Collection[str]
) -> Messages:
    """columns: the keys that have a field; the faults of all others are at `more`.

    Raises AppNotFound and NotConfigured.
    """
    if not isinstance(more, Mapping):
        return {"more": ['is not a mapping of keys to values, such as {"max_retries": 3}']}
    found: Messages = {}
    for key in columns:
        if key in more:
            found.setdefault("more", []).append(f"'{key}' has a field of its own")
    _, faults = jobs.judged(name or "job", keys, known_tasks())  # Django refuses an empty one
    for fault in faults:
        found.setdefault(field_of(fault, keys, columns), []).append(words(fault))
    return found


def field_of(fault: JobFault, keys: Mapping[str, Any], columns: Collection[str]) -> str:
    """That of the first of its keys which is given, else of the first."""
    if not fault.keys:
        return "name"
    key = next((key for key in fault.keys if key in keys), fault.keys[0])
    return key if key in columns else "more"


def words(fault: JobFault) -> str:
    return fault.what + (f" ({fault.hint})" if fault.hint else "")


def known_tasks() -> Collection[str] | None:
    """Those of the project's app; None where jobs may name tasks of other programs."""
    if getattr(settings, "SUPERVISOR_FOREIGN_TASKS", False):
        return None
    return task_names()


def clash(name: str) -> str | None:
    """Why a row may not have the name: it is that of a job from elsewhere.

    None also while Redis is unavailable: it is asked again when the row is loaded.
    """
    try:
        origin = ledger().loaded([name]).origins.get(name)
    except RedisError:
        return None
    except SupervisorError as error:
        return str(error)
    if origin is None or origin.source == SOURCE:
        return None
    return str(JobElsewhere(name, origin.place, "a row of Django's"))
