"""From rows to loaded jobs, once their transaction has committed.

1. A row that is saved or deleted is remembered, and Django is asked to call back after the commit.
   A transaction that is rolled back loads nothing.
2. After the commit the remembered rows are read again and loaded as they are at that time; the
   jobs of deleted rows are removed.
3. What cannot be loaded - Redis is unavailable, another source has the name - does not fail the
   request, whose work is done: it is logged, and shown to the user of the admin. The
   leading beat, or `manage.py supervisor sync`, loads it later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import local
from typing import Any

from django.db import transaction
from django.db.models import Count, Max
from django.db.models.signals import post_delete, post_save

from supervisor import jobs
from supervisor.catalog.put_checks import judged
from supervisor.errors import SupervisorError
from supervisor.features.django.models import SOURCE, Job, words
from supervisor.features.django.project import celery_app, ledger
from supervisor.job.changes import SourceJobs
from supervisor.ledger.actions import Actor
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError, explained

log = get_logger("supervisor.django")


@dataclass(frozen=True, slots=True)
class EditingUser:
    """The user who edits rows now, and from which address."""

    name: str = ""

    show: Callable[[str], object] = lambda _: None
    """Shows that user a message."""

    address: str = ""

    @property
    def actor(self) -> Actor:
        """The user, for the record of actions; the process if code saved the row."""
        if self.name:
            return Actor(self.name, "django", self.address)
        return Actor.of_process("django")


NO_USER = EditingUser()
_editor: ContextVar[EditingUser] = ContextVar("supervisor_editor", default=NO_USER)


@contextmanager
def edited_by(editor: EditingUser) -> Iterator[None]:
    """Names the user who edits the rows that are saved and deleted inside the block."""
    token = _editor.set(editor)
    try:
        yield
    finally:
        _editor.reset(token)


class _Remembered(local):
    """Names of this thread's rows that are to be loaded, by database, in the order of their edits.

    What a rollback leaves here is loaded with the next commit, as it is at that time.
    """

    def __init__(self) -> None:
        self.names: dict[str, dict[str, None]] = {}

    def take(self, using: str) -> list[str]:
        return list(self.names.pop(using, {}))


_remembered = _Remembered()


def follow_rows() -> None:
    post_save.connect(_remember, sender=Job, dispatch_uid="supervisor.saved")
    post_delete.connect(_remember, sender=Job, dispatch_uid="supervisor.deleted")


def _remember(instance: Job, using: str, **_: Any) -> None:
    _remembered.names.setdefault(using, {})[instance.pk] = None
    loads = partial(_load_remembered, using, _editor.get())
    transaction.on_commit(loads, using=using, robust=True)


def _load_remembered(using: str, editor: EditingUser) -> None:
    names = _remembered.take(using)
    if not names:  # an earlier edit of the same transaction has loaded them
        return
    failed = load_rows(names, using, editor)
    for name, why in failed.items():
        log.error("row not loaded", job=name, error=why, hint="beat tries again, or run sync")
    if failed:
        first = next(iter(failed))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        editor.show(f"Saved, and not loaded yet: {first}{more}: {failed[first]}")


def load_rows(names: Sequence[str], using: str, by: EditingUser) -> dict[str, str]:
    """Loads these rows as they are now, and removes the jobs of deleted ones.

    Returns, by name, why a job could not be loaded. Raises what the database raises.
    """
    rows = Job.objects.using(using).in_bulk(names)
    failed: dict[str, str] = {}
    for name in names:
        try:
            ledger().now()  # `jobs` would wait much longer for one that hangs
            _load(name, rows.get(name), by)
        except SupervisorError as error:
            failed[name] = str(error)
        except RedisError as error:  # each of the others would wait as long
            left = names[names.index(name) :]
            return failed | dict.fromkeys(left, explained(error))
    return failed


def _load(name: str, row: Job | None, by: EditingUser) -> None:
    """Raises SupervisorError and RedisError."""
    if row is None:
        jobs.remove(name, app=celery_app(), by=by.actor, source=SOURCE)
        return
    actor = by.actor if by.name else Actor.of_process("django", row.changed_by)
    jobs.put(name, app=celery_app(), by=actor, source=SOURCE, **row.keys())


# The table as a source of jobs: what beat and `manage.py supervisor sync` read.


class Rows:
    """A Source. Its errors are the database's own."""

    name = SOURCE

    def fingerprint(self) -> str:
        """One query, whatever the table's size. Each year has holidays of its own."""
        totals = Job.objects.aggregate(Count("pk"), Max("changed_at"))
        year = datetime.now(UTC).year
        return f"{totals['pk__count']} rows, {totals['changed_at__max']}, {year}"

    def read(self) -> SourceJobs:
        """Unknown tasks are not faults here: a row that was saved is valid."""
        read = SourceJobs()
        for row in Job.objects.iterator():
            spec, faults = judged(row.name, row.keys())
            if faults:
                read.problems[row.name] = "; ".join(map(words, faults))
            else:
                read.specs[row.name] = spec
        return read
