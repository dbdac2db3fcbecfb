"""The table of jobs: what a person wrote, as a schedule file would have it.

A row is no job: it is loaded once its transaction has committed (loading.py), and is then a job as
any other. How it runs and has run is in the ledger, and nowhere in these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from supervisor.integrations.django.checking import messages_by_field

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

#: A column that holds one of these says nothing: the key is absent.
EMPTY: tuple[Any, ...] = ("", None, [], {}, False)


class JobQuerySet(models.QuerySet):
    """Django sends no signal for `update`; so beat reads the table again, within a minute."""

    def update(self, **values: Any) -> int:
        return int(super().update(**{"changed_at": timezone.now(), **values}))


class Job(models.Model):
    """One job. Its name is its key, and does not change: a job with another name is another."""

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
        """As a schedule file would have it, without the name."""
        own = {key: getattr(self, key) for key in COLUMNS}
        lines = [line.strip() for line in self.cron.splitlines() if line.strip()]
        own["cron"] = lines if len(lines) > 1 else "".join(lines)
        more = self.more if isinstance(self.more, Mapping) else {}
        return {**more, **{key: value for key, value in own.items() if value not in EMPTY}}

    def clean(self) -> None:
        """Raises ValidationError with all that is wrong, each at its field."""
        if found := messages_by_field(self.name, self.keys(), self.more, COLUMNS):
            raise ValidationError(found)
