"""What adopting an app changes in it: its settings, its tasks, its queues, its schedules."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from celery import Celery
from celery.app.utils import filter_hidden_settings
from celery.schedules import crontab
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from supervisor.app import OWN, REPLACED, dotted, may_send_nothing, overridden, settled
from supervisor.beat.import_celery import (
    OF_BEAT,
    When,
    clock_times,
    every_text,
    read_beat_schedule,
    read_redbeat,
    zone_name,
    zone_of,
)
from supervisor.beat.import_celery import (
    found as found_item,
)
from supervisor.errors import NotConfigured, NotTranslatable
from supervisor.files.import_text import Found, Item, LeftOut, write
from supervisor.job.spec import JobSpec
from supervisor.operate.plans import crowds
from supervisor.operate.words import plural
from supervisor.schedule import schedule_of
from supervisor.sending.app_settings import REDBEAT_PREFIX, broker_url_of, setting
from supervisor.sending.queues import queue_of
from supervisor.settings import is_redis
from supervisor.times import EPOCH, render_duration, render_moment

DJANGO = "django-celery-beat"

#: How long workers have to say which queues they consume.
PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Source:
    """One of the places where the app has schedules, without what an earlier one has as well."""

    name: str
    items: list[Item]


def sources_of(app: Celery, now: datetime, jobs: Collection[str] = ()) -> list[Source]:
    """The stores before the settings: beat enters `beat_schedule` into its store.

    jobs: names of entries to leave out, because schedule files have jobs for them already.
    """
    found = []
    if has_tables():
        found.append(Source(DJANGO, read_django(app, now)))
    if is_redis(broker_url_of(app.conf)) or setting(app.conf, "redbeat_redis_url"):
        items = (read_redbeat(app, now, prefix) for prefix in sorted(prefixes(app)))
        found.append(Source("RedBeat", [*chain.from_iterable(items)]))
    found.append(Source("beat_schedule", read_beat_schedule(app, now)))
    found.append(Source("beat_scheduler", [*unread_scheduler(app)]))
    known: set[str] = set()
    for source in found:
        source.items[:] = [
            item
            for item in source.items
            if name_of(item) not in known and not (isinstance(item, Found) and item.name in jobs)
        ]
        known.update(map(name_of, source.items))
    return [source for source in found if source.items]


#: Schedulers whose schedule is read.
READ = ("celery.beat.PersistentScheduler", "celery.beat.Scheduler", *REPLACED, *OWN)
READ_IN_DJANGO = ("django", "django_celery_beat.schedulers.DatabaseScheduler")


def unread_scheduler(app: Celery) -> Iterator[LeftOut]:
    """The app's own scheduler, which may make its schedule of anything."""
    now = app.conf.beat_scheduler  # completes what supervise() has kept
    given = getattr(app, "supervisor", {}).get("before", {}).get("beat_scheduler", now)
    if (name := dotted(given)) not in (READ + READ_IN_DJANGO if has_tables() else READ):
        is_django = name in READ_IN_DJANGO
        why = "Django is not set up" if is_django else "it may have a schedule of its own"
        what = f"its entries are not read: {why}; write jobs for them, in files or at run time"
        yield LeftOut(f"beat_scheduler {name!r}", what)


def prefixes(app: Celery) -> set[str]:
    """Prefixes of RedBeat's keys: the app's own, and the one that supervise() may have set."""
    now = setting(app.conf, "redbeat_key_prefix")
    own = app.supervisor["before"]["redbeat_key_prefix"] if hasattr(app, "supervisor") else now
    return {now or REDBEAT_PREFIX, own or REDBEAT_PREFIX}


def name_of(item: Item) -> str:
    """The entry's own name, which stands in quotes after that of its source."""
    return item.source.partition(" ")[2]


def jobs_of(sources: Iterable[Source]) -> Iterator[Found]:
    for source in sources:
        yield from (item for item in source.items if isinstance(item, Found))


def report(app: Celery, sources: list[Source]) -> Iterator[str]:
    """Lines for people."""
    yield from section("Settings that supervise() changes:", settings_lines(app))
    tasks = (guarded_line(app, *each) for each in guarded(app, sources).items())
    yield from section("Tasks that get the guard; all others stay as they are:", tasks)
    yield from section("To look at:", to_look_at(app, sources))
    lines = (queue_line(*each) for each in queues(app, sources).items())
    yield from section("Queues of the jobs, and the workers that consume them:", lines)
    yield from section("Schedules:", schedule_lines(sources))
    if not sources:
        yield "The app has no schedule that is not a job already."


def to_look_at(app: Celery, sources: list[Source]) -> list[str]:
    """What holds of these jobs although each of them is translated."""
    values = [found.values for found in jobs_of(sources)]
    grids = ((each["every"], each.get("phase")) for each in values if "every" in each)
    return [*may_send_nothing(app, guarded(app, sources)), *crowds(grids)]


def section(heading: str, lines: Iterable[str]) -> Iterator[str]:
    """Nothing without lines."""
    for number, line in enumerate(lines):
        if number == 0:
            yield heading
        yield f"  {line}"


def settings_lines(app: Celery) -> Iterator[str]:
    for name, (before, now) in settled(app).items():
        yield f"{name}: {shown(name, before)} -> {shown(name, now)}"
    for found in overridden(app):
        yield f"{found.setting} stays {found.value!r}: {found.hint}"


def schedule_lines(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        written = write([], source.items)
        yield f"{source.name}: {plural(len(written.jobs), 'job')} to be imported"
        yield from (f"  {line}" for line in written.reports)


def shown(name: str, value: Any) -> str:
    return repr(masked(name, value))


def masked(name: str, value: Any) -> Any:
    """A setting without passwords."""
    value = filter_hidden_settings({name: value})[name]
    return maybe_sanitize_url(value) if isinstance(value, str) else value


def in_json(name: str, value: Any) -> str | int | float | None:
    value = masked(name, value)
    return value if isinstance(value, str | int | float | None) else repr(value)


def guarded(app: Celery, sources: Iterable[Source]) -> dict[str, list[str]]:
    """The tasks that get the guard, each with its jobs."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for found in jobs_of(sources):
        jobs[str(found.values["task"])].append(found.name)
    own = (name for name, task in app.tasks.items() if getattr(task, "guard", None))
    return {task: jobs[task] for task in sorted({*jobs, *own})}


def guarded_line(app: Celery, task: str, jobs: Sequence[str]) -> str:
    of = f"of {', '.join(jobs)}" if jobs else "by its own `guard`"
    unknown = "" if task in app.tasks else "; the app has no task of this name"
    return f"{task}: {of}{unknown}"


@dataclass(frozen=True, slots=True)
class JobQueue:
    """A queue that jobs go to. workers: that consume it, with their pools."""

    jobs: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)


def queues(app: Celery, sources: Iterable[Source]) -> dict[str, JobQueue]:
    jobs: dict[str, list[str]] = defaultdict(list)
    for found in jobs_of(sources):
        queue = found.values.get("queue") or queue_of(app, str(found.values["task"]))
        jobs[str(queue)].append(found.name)
    pools = workers(app) if jobs else {}
    return {name: JobQueue(jobs[name], sorted(pools.get(name, ()))) for name in sorted(jobs)}


def queue_line(name: str, queue: JobQueue) -> str:
    consumers = ", ".join(queue.workers) or "no worker answers"
    return f"{name}: {plural(len(queue.jobs), 'job')}; {consumers}"


def report_shape(app: Celery, sources: list[Source]) -> dict[str, Any]:
    """The same for programs."""
    texts = {source.name: write([], source.items) for source in sources}
    return {
        "settings": {
            name: {"before": in_json(name, before), "after": in_json(name, now)}
            for name, (before, now) in settled(app).items()
        },
        "kept_settings": {each.setting: each.hint for each in overridden(app)},
        "tasks": {
            task: {"jobs": jobs, "is_known": task in app.tasks}
            for task, jobs in guarded(app, sources).items()
        },
        "to_look_at": to_look_at(app, sources),
        "queues": {name: asdict(queue) for name, queue in queues(app, sources).items()},
        "schedules": {
            name: {"jobs": list(written.jobs), "reports": written.reports}
            for name, written in texts.items()
        },
    }


def workers(app: Celery) -> Mapping[str, list[str]]:
    """The workers that answer, with their pools, by queue."""
    found: dict[str, list[str]] = defaultdict(list)
    try:
        with app.connection_for_write() as connection:
            inspect = app.control.inspect(timeout=PATIENCE_SECONDS, connection=connection)
            consumed: dict[str, Any] = inspect.active_queues() or {}
            stats: dict[str, Any] = inspect.stats() or {}
    except (OperationalError, OSError):
        return found
    for worker, queues in consumed.items():
        pool = stats[worker]["pool"]["implementation"] if worker in stats else "pool unknown"
        for queue in queues:  # celery.concurrency.prefork:TaskPool
            found[queue["name"]].append(f"{worker} ({pool.partition(':')[0].split('.')[-1]})")
    return found


# Jobs made from the tables of django-celery-beat, through Django's own models. A row has one of
# four schedules: a crontab in a zone of its own, an interval, one time of a calendar (clocked), or
# times of the sun. It may begin and expire, and run once only.


LONGEST_DESCRIPTION = 1000


def has_tables() -> bool:
    """Whether this process' Django project has django-celery-beat among its apps."""
    try:
        from django.apps import apps
    except ImportError:
        return False
    return bool(apps.ready) and apps.is_installed("django_celery_beat")


def read_django(app: Celery, now: datetime) -> list[Item]:
    """All rows, in order of their names. Raises NotConfigured where they cannot be read."""
    try:
        import django
        from django.core.exceptions import ImproperlyConfigured
        from django.db import Error
    except ImportError:
        raise NotConfigured("Django is not installed in this environment") from None
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise NotConfigured(f"Django is not set up ({error}): set DJANGO_SETTINGS_MODULE") from None
    if not has_tables():
        what = "django_celery_beat is not in INSTALLED_APPS of the app's Django settings"
        raise NotConfigured(what)
    from django_celery_beat.models import PeriodicTask

    rows = PeriodicTask.objects.select_related("interval", "crontab", "solar", "clocked")
    try:
        read = list(rows.exclude(name=OF_BEAT).order_by("name"))
    except Error as error:
        raise NotConfigured(f"django-celery-beat's tables cannot be read: {error}") from error
    return [_item(row, app, now) for row in read]


def _item(row: Any, app: Celery, now: datetime) -> Found | LeftOut:
    source = f"django-celery-beat {row.name!r}"
    try:
        when = _when(row, app, now)
        when.values["description"] = row.description[:LONGEST_DESCRIPTION]
        if len(row.description) > LONGEST_DESCRIPTION:
            when.lost.append(f"its description has more than {LONGEST_DESCRIPTION} characters")
        return found_item(source, row.name, _fields(row), when)
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


def _when(row: Any, app: Celery, now: datetime) -> When:
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
    return When(values)


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
