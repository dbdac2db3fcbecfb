"""The table of jobs: what a person wrote, as a schedule file would have it.

A row is not yet a job: it is loaded once its transaction has committed (loading.py), and is then a
job like any other. Its runs are in the ledger, not in these tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from supervisor.catalog.faults import JobFault
from supervisor.catalog.job_checks import Tasks
from supervisor.catalog.put_checks import judged
from supervisor.errors import JobElsewhere, SupervisorError
from supervisor.features.django.project import ledger, project_tasks
from supervisor.store.failures import RedisError

#: The source of a row's job.
SOURCE = "django"

#: The keys that have a column; `more` has all others.
COLUMNS = (
    "task",
    "cron",
    "every",
    "timezone",
    "args",
    "kwargs",
    "overlap",
    "queue",
    "paused",
    "description",
    "labels",
)

#: A column with one of these values stands for an absent key.
EMPTY: tuple[Any, ...] = ("", None, [], {}, False)


class JobQuerySet(models.QuerySet):
    """Django sends no signal for `update`; so beat reads the table again, within a minute."""

    def update(self, **values: Any) -> int:
        return int(super().update(**{"changed_at": timezone.now(), **values}))


class Job(models.Model):
    """One job. Its name is its key and does not change; another name is another job."""

    name = models.CharField(primary_key=True, max_length=100)
    task = models.CharField(max_length=255, blank=True)
    cron = models.TextField(blank=True)
    every = models.CharField(max_length=100, blank=True)
    timezone = models.CharField("time zone", max_length=100, blank=True)
    args = models.JSONField("arguments", default=list, blank=True)
    kwargs = models.JSONField("keyword arguments", default=dict, blank=True)
    overlap = models.CharField(max_length=20, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    paused = models.BooleanField(default=False)
    description = models.TextField(blank=True)
    labels = models.JSONField(default=dict, blank=True)
    more = models.JSONField("further keys", default=dict, blank=True)
    changed_at = models.DateTimeField("changed", auto_now=True, db_index=True)
    changed_by = models.CharField("by", max_length=150, blank=True, editable=False)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        permissions = (
            ("trigger_job", "Can trigger jobs"),
            ("pause_job", "Can pause and resume jobs"),
            ("cancel_job", "Can cancel the runs of jobs"),
        )

    def __str__(self) -> str:
        return str(self.name)

    def keys(self) -> dict[str, Any]:
        """The job's keys as in a schedule file, without its name."""
        own = {key: getattr(self, key) for key in COLUMNS}
        lines = [line.strip() for line in self.cron.splitlines() if line.strip()]
        own["cron"] = lines if len(lines) > 1 else "".join(lines)
        more = self.more if isinstance(self.more, Mapping) else {}
        return {**more, **{key: value for key, value in own.items() if value not in EMPTY}}

    def clean(self) -> None:
        """Raises ValidationError with all that is wrong, each at its field."""
        if messages := messages_by_field(self.name, self.keys(), self.more, COLUMNS):
            raise ValidationError(messages)


# What is wrong with a row, in the words of `supervisor check`, each at the field it is about.


def messages_by_field(
    name: str, keys: Mapping[str, Any], more: Any, columns: Collection[str]
) -> dict[str, list[str]]:
    """columns: the keys that have a field; the faults of all others are at `more`.

    Raises NotConfigured.
    """
    if not isinstance(more, Mapping):
        return {"more": ['is not a mapping of keys to values, such as {"max_retries": 3}']}
    messages: dict[str, list[str]] = {}
    for key in columns:
        if key in more:
            messages.setdefault("more", []).append(f"'{key}' has a field of its own")
    _, faults = judged(name or "job", keys, app_tasks())  # Django refuses an empty one
    for fault in faults:
        messages.setdefault(field_of(fault, keys, columns), []).append(words(fault))
    return messages


def field_of(fault: JobFault, keys: Mapping[str, Any], columns: Collection[str]) -> str:
    """The field of the first of its keys that is given, or else of the first key."""
    if not fault.keys:
        return "name"
    key = next((key for key in fault.keys if key in keys), fault.keys[0])
    return key if key in columns else "more"


def words(fault: JobFault) -> str:
    return fault.what + (f" ({fault.hint})" if fault.hint else "")


def app_tasks() -> Tasks | None:
    """The tasks of the project's app; None if jobs may name tasks of other programs."""
    if getattr(settings, "SUPERVISOR_FOREIGN_TASKS", False):
        return None
    return project_tasks()


def clash(name: str) -> str | None:
    """Why a row may not have the name: a job of another source has it.

    None also while Redis is unavailable: it is checked again when the row is loaded.
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
