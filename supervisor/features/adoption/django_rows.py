"""The tables of django-celery-beat as jobs: `import`, `adopt`, `supervise(app, adopt_rows=True)`.

A row has one of four schedules: a crontab in a zone of its own, an interval, one time of a calendar
(clocked), or times of the sun. It may begin and expire, and run once only. Django's own models read
it.

With `adopt_rows` the rows stay what the app's code and admin save: the leading beat looks at them
every half a minute, as at any source of jobs (reload.py), and edits, pauses and removes their jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.schedules import crontab

from supervisor.catalog.entries import CELERYS_OWN, Entries, beat_schedule_of
from supervisor.catalog.load import put_jobs
from supervisor.errors import NotConfigured, NotTranslatable, SupervisorError
from supervisor.features.adoption import DJANGO
from supervisor.features.adoption.adopted import spec_from
from supervisor.features.adoption.import_celery import Translated, clock_times, every_text, job_of
from supervisor.features.adoption.imported import ImportedJob, Item, LeftOut, is_job_name, job_name
from supervisor.features.adoption.redbeat_rules import zone_name, zone_of
from supervisor.job import changes
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.times import EPOCH, render_duration, render_moment

log = get_logger("supervisor.beat")

LONGEST_DESCRIPTION = 1000


def has_tables() -> bool:
    """Whether this process' Django project has django-celery-beat among its apps."""
    try:
        from django.apps import apps
    except ImportError:
        return False
    return bool(apps.ready) and apps.is_installed("django_celery_beat")


class CeleryBeatRows:
    """A Source: all rows, except those that django-celery-beat has from `beat_schedule`."""

    name = DJANGO

    def __init__(self, app: Celery) -> None:
        self._app = app

    def fingerprint(self) -> str:
        """Differs after each change that makes django-celery-beat's beat read the rows again."""
        _set_up()
        from django_celery_beat.models import PeriodicTask, PeriodicTasks

        last = PeriodicTask.objects.order_by("date_changed").last()
        row = f"{last.pk} {last.date_changed}" if last else ""
        return f"{PeriodicTask.objects.count()} rows, {row}, {PeriodicTasks.last_change()}"

    def read(self) -> changes.SourceJobs:
        read, now = changes.SourceJobs(), datetime.now(UTC)
        of_code = beat_schedule_of(self._app)
        for row in _rows():
            if row.name in of_code:
                continue
            # A number of its own, because other rows come and go.
            is_valid = is_job_name(row.name)
            job = row.name if is_valid else f"{job_name(row.name)[:80]}-{row.pk}"
            try:
                read.specs[job] = spec_from(job, _item(row, self._app, now))
            except NotTranslatable as error:
                read.problems[job] = f"row {row.name!r}: {error}"
        return read


def forget_rows(ledger: Ledger, entries: Entries) -> None:
    """Removes the jobs of rows that no beat follows any more."""
    own = [name for name, at in ledger.origins().items() if at.source == DJANGO]
    if not own:
        return
    action = Action(Actor.of_process("beat", "beat"), "load", DJANGO)
    try:
        put_jobs(ledger, entries, dict.fromkeys(own), DJANGO, DJANGO, action=action)
    except SupervisorError as error:  # a job of files follows one of them
        log.error("rows not given back", rows=len(own), reason=str(error))
        return
    ledger.client.hdel(ledger.keys.beat, f"source:{DJANGO}")
    log.warning("rows given back to django-celery-beat", rows=len(own))


def changed_since(app: Celery, loaded_at: datetime | None) -> datetime | None:
    """When rows that no beat follows were changed, if that was after schedule files were loaded."""
    if app.supervisor["adopt_rows"] or not has_tables() or not loaded_at:  # type: ignore[attr-defined]
        return None
    try:
        _set_up()
        from django_celery_beat.models import PeriodicTasks

        changed_at = _aware(PeriodicTasks.last_change())
    except Exception:  # noqa: BLE001 - of Django's database, which is none of the ledger's
        return None
    return changed_at if changed_at and changed_at > loaded_at else None


def read_django(app: Celery, now: datetime) -> list[Item]:
    """All rows, in order of their names. Raises NotConfigured where they cannot be read."""
    return [_item(row, app, now) for row in _rows()]


def _rows() -> list[Any]:
    _set_up()
    from django.db import Error
    from django_celery_beat.models import PeriodicTask

    rows = PeriodicTask.objects.select_related("interval", "crontab", "solar", "clocked")
    try:
        return list(rows.exclude(name=CELERYS_OWN).order_by("name"))
    except Error as error:
        raise NotConfigured(f"django-celery-beat's tables cannot be read: {error}") from error


def _set_up() -> None:
    try:
        import django
        from django.core.exceptions import ImproperlyConfigured
    except ImportError:
        raise NotConfigured("Django is not installed in this environment") from None
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise NotConfigured(f"Django is not set up ({error}): set DJANGO_SETTINGS_MODULE") from None
    if not has_tables():
        what = "django_celery_beat is not in INSTALLED_APPS of the app's Django settings"
        raise NotConfigured(what)


def _item(row: Any, app: Celery, now: datetime) -> ImportedJob | LeftOut:
    source = f"django-celery-beat {row.name!r}"
    try:
        when = _when(row, app, now)
        when.values["description"] = row.description[:LONGEST_DESCRIPTION]
        if len(row.description) > LONGEST_DESCRIPTION:
            when.lost.append(f"its description has more than {LONGEST_DESCRIPTION} characters")
        return job_of(source, row.name, _fields(row), when)
    except Exception as error:  # noqa: BLE001 - a row costs itself only
        what = row.scheduler or "none"
        return LeftOut(source, str(error), [f"task: {row.task}", f"schedule: {what}"])


def _fields(row: Any) -> dict[str, Any]:
    options = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key")}
    options = {name: value for name, value in options.items() if value}
    options |= {"priority": row.priority, "expires": row.expire_seconds}
    return {
        "task": row.task,
        "args": _json(row, "args", list),
        "kwargs": _json(row, "kwargs", dict),
        "options": options | {"headers": _json(row, "headers", dict) or None},
        "enabled": row.enabled,
    }


def _json(row: Any, name: str, kind: type) -> Any:
    try:
        value = json.loads(getattr(row, name) or "null") or kind()
    except ValueError as error:
        raise NotTranslatable(f"{name!r} is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise NotTranslatable(f"{name!r} is no JSON {'list' if kind is list else 'object'}")
    return value


def _when(row: Any, app: Celery, now: datetime) -> Translated:
    """Raises NotTranslatable."""
    start, end = _aware(row.start_time), _aware(row.expires)
    if end and end <= now:
        raise NotTranslatable(f"it has expired, at {render_moment(end)}")
    values: dict[str, Any]
    if row.crontab:
        values = _clock_times(row.crontab, app)
    elif row.interval:
        values = _interval(row.interval, start, now)
    elif row.clocked:
        values = _once(_aware(row.clocked.clocked_time), now)
    elif row.solar:
        raise NotTranslatable("there is no key for the times of the sun")
    else:
        raise NotTranslatable("it has no schedule")
    if start and start > now and not row.clocked:
        values["start_at"] = render_moment(start)
    if row.one_off and not row.clocked:
        values = _first_of(row, values, now)
    if end:
        values["end_at"] = render_moment(end)
    return Translated(values)


def _aware(moment: datetime | None) -> Any:
    """The moment in UTC, as Django reads what its database holds."""
    if moment is None:
        return None
    from django_celery_beat.utils import make_aware

    return make_aware(moment).astimezone(UTC).replace(microsecond=0)


def _clock_times(row: Any, app: Celery) -> dict[str, Any]:
    from django.conf import settings

    source = crontab(
        minute=row.minute,
        hour=row.hour,
        day_of_week=row.day_of_week,
        day_of_month=row.day_of_month,
        month_of_year=row.month_of_year,
    )
    is_aware = getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True)
    return clock_times(source, zone_name(row.timezone) if is_aware else zone_of(app))


def _interval(row: Any, start: datetime | None, now: datetime) -> dict[str, Any]:
    """An interval that has yet to start counts from its start."""
    every = row.schedule.run_every
    values = {"every": every_text(every)}
    if start and start > now and (phase := (start - EPOCH) % every):
        values["phase"] = render_duration(phase)
    return values


def _once(at: datetime, now: datetime) -> dict[str, Any]:
    if at <= now:
        raise NotTranslatable(f"its only time, {render_moment(at)}, has passed")
    return {"at": [render_moment(at)]}


def _first_of(row: Any, values: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The only time of a schedule that runs once."""
    if row.total_run_count:
        raise NotTranslatable("it runs once, and has run")
    if row.interval and "start_at" not in values:
        last = _aware(row.last_run_at or row.date_changed)
        return _once(last + row.schedule.run_every, now)
    spec = JobSpec.model_validate({"name": "once", "task": row.task, **values})
    first = schedule_of(spec).next_after(now)
    if first is None:
        raise NotTranslatable("it runs once, and has no time to come")
    return {"at": [render_moment(first)]}
