"""What `adopt` changes in an app: its settings, its tasks, its schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from celery import Celery
from celery.app.utils import filter_hidden_settings
from celery.utils.imports import symbol_by_name
from kombu.utils.url import maybe_sanitize_url

from supervisor.app import OWN, REPLACED, adjusted, dotted, overridden, tasks_of
from supervisor.catalog.fitness import may_send_nothing, refused_in_pool
from supervisor.catalog.job_checks import check_job
from supervisor.features.adoption import DJANGO
from supervisor.features.adoption.django_rows import has_tables, read_django
from supervisor.features.adoption.import_celery import read_beat_schedule, read_redbeat
from supervisor.features.adoption.imported import ImportedJob, Item, LeftOut, write
from supervisor.schedule import crowds
from supervisor.sending.app_settings import REDBEAT_PREFIX, broker_url_of, setting
from supervisor.store.address import is_redis


@dataclass(frozen=True, slots=True)
class AppSchedule:
    """One of the places where an app has schedules, without those that an earlier one has too."""

    name: str
    items: list[Item]

    @property
    def has_jobs(self) -> bool:
        return any(isinstance(item, ImportedJob) for item in self.items)


def sources_of(app: Celery, now: datetime, jobs: Collection[str] = ()) -> list[AppSchedule]:
    """Tables and RedBeat come before the settings: beat copies `beat_schedule` to where it stores
    entries.

    jobs: names of entries to leave out, because schedule files have jobs for them already.
    """
    sources = []
    if has_tables() and not follows_rows(app):
        sources.append(AppSchedule(DJANGO, read_django(app, now)))
    if is_redis(broker_url_of(app.conf)) or setting(app.conf, "redbeat_redis_url"):
        items = (read_redbeat(app, now, prefix) for prefix in sorted(prefixes(app)))
        sources.append(AppSchedule("RedBeat", [*chain.from_iterable(items)]))
    sources.append(AppSchedule("beat_schedule", read_beat_schedule(app, now)))
    sources.append(AppSchedule("beat_scheduler", [*unread_scheduler(app)]))
    names: set[str] = set()
    for source in sources:
        source.items[:] = [
            item
            for item in source.items
            if name_of(item) not in names
            and not (isinstance(item, ImportedJob) and item.name in jobs)
        ]
        names.update(map(name_of, source.items))
    return [source for source in sources if source.items]


def follows_rows(app: Celery) -> bool:
    return bool(getattr(app, "supervisor", {}).get("adopt_rows"))


#: Schedulers of which all entries are read.
READ = ("celery.beat.PersistentScheduler", "celery.beat.Scheduler", *REPLACED, *OWN)
OF_ROWS = "django_celery_beat.schedulers.DatabaseScheduler"
READ_IN_DJANGO = ("django", OF_ROWS)


def unread_scheduler(app: Celery) -> Iterator[LeftOut]:
    """The app's own scheduler, whose schedule may be of any kind."""
    present = app.conf.beat_scheduler  # reading it completes what supervise() has kept
    scheduler = getattr(app, "supervisor", {}).get("before", {}).get("beat_scheduler", present)
    if (name := dotted(scheduler)) not in (READ + READ_IN_DJANGO if has_tables() else READ):
        yield LeftOut(f"beat_scheduler {name!r}", why_unread(scheduler, name))


def why_unread(scheduler: Any, name: str) -> str:
    """A subclass of the scheduler of rows may emit more than the rows."""
    if has_tables() and extends_rows(scheduler):
        return (
            "the rows of django-celery-beat are read; if it emits anything else, or at other times,"
            " write jobs for that; rows are made when a beat with it starts"
        )
    is_django = name in READ_IN_DJANGO
    why = "Django is not set up" if is_django else "it may have a schedule of its own"
    return f"its entries are not read: {why}; write jobs for them, in files or at run time"


def extends_rows(scheduler: Any) -> bool:
    try:
        own = symbol_by_name(scheduler)
    except (ImportError, AttributeError, ValueError):  # beat will say so when it starts
        return False
    return any(dotted(parent) == OF_ROWS for parent in getattr(own, "__mro__", ()))


def prefixes(app: Celery) -> set[str]:
    """Prefixes of RedBeat's keys: the app's own, and the one that supervise() may have set."""
    present = setting(app.conf, "redbeat_key_prefix")
    own = app.supervisor["before"]["redbeat_key_prefix"] if hasattr(app, "supervisor") else present
    return {present or REDBEAT_PREFIX, own or REDBEAT_PREFIX}


def name_of(item: Item) -> str:
    """The name of the entry, in quotes."""
    return item.source.partition(" ")[2]


def jobs_of(sources: Iterable[AppSchedule]) -> Iterator[ImportedJob]:
    for source in sources:
        yield from (item for item in source.items if isinstance(item, ImportedJob))


def report(app: Celery, sources: list[AppSchedule]) -> Iterator[str]:
    """Lines for people."""
    yield from section("Settings that supervise() changes:", settings_lines(app))
    tasks = (guarded_line(app, *each) for each in guarded(app, sources).items())
    yield from section("Tasks that get the guard; all others stay as they are:", tasks)
    yield from section("To look at:", to_look_at(app, sources))
    yield from section("Schedules:", schedule_lines(sources))
    if not sources:
        yield "The app has no schedule that is not a job already."


def to_look_at(app: Celery, sources: list[AppSchedule]) -> list[str]:
    """What to check in these jobs, although all of them were translated."""
    specs = {job.name: check_job("job", job.values, {}, None)[0] for job in jobs_of(sources)}
    tasks = tasks_of(app)  # as `supervisor -A proj check` will judge the jobs
    faults = [f"{name}: {each.text}" for name, spec in specs.items() for each in tasks.faults(spec)]
    nothing = may_send_nothing(app.tasks, guarded(app, sources))
    refused = refused_in_pool(app.conf.worker_pool, specs)
    return [*faults, *nothing, *refused, *crowds.notes(specs.values())]


def section(heading: str, lines: Iterable[str]) -> Iterator[str]:
    """The heading and its lines; nothing if there are none."""
    for number, line in enumerate(lines):
        if number == 0:
            yield heading
        yield f"  {line}"


def settings_lines(app: Celery) -> Iterator[str]:
    for name, (before, now) in adjusted(app).items():
        yield f"{name}: {shown(name, before)} -> {shown(name, now)}"
    for kept in overridden(app):
        yield f"{kept.setting} stays {shown(kept.setting, kept.value)}: {kept.hint}"


def schedule_lines(sources: Sequence[AppSchedule]) -> Iterator[str]:
    for source in sources:
        written = write([], source.items)
        count = len(written.jobs)
        yield f"{source.name}: {count:,} job{'' if count == 1 else 's'} to be imported"
        yield from (f"  {line}" for line in written.reports)


def shown(name: str, value: Any) -> str:
    return repr(masked(name, value))


def masked(name: str, value: Any) -> Any:
    """A setting without passwords, and a class by its name."""
    if isinstance(value, type):
        return dotted(value)
    value = filter_hidden_settings({name: value})[name]
    return maybe_sanitize_url(value) if isinstance(value, str) else value


def in_json(name: str, value: Any) -> str | int | float | None:
    value = masked(name, value)
    return value if isinstance(value, str | int | float | None) else repr(value)


def guarded(app: Celery, sources: Iterable[AppSchedule]) -> dict[str, list[str]]:
    """The tasks that get the guard, with the names of their jobs."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for job in jobs_of(sources):
        jobs[str(job.values["task"])].append(job.name)
    own = (name for name, task in app.tasks.items() if getattr(task, "guard", None))
    return {task: jobs[task] for task in sorted({*jobs, *own})}


def guarded_line(app: Celery, task: str, jobs: Sequence[str]) -> str:
    of = f"of {', '.join(jobs)}" if jobs else "by its own `guard`"
    unknown = "" if task in app.tasks else "; the app has no task of this name"
    return f"{task}: {of}{unknown}"


def report_shape(app: Celery, sources: list[AppSchedule]) -> dict[str, Any]:
    """The same for programs."""
    texts = {source.name: write([], source.items) for source in sources}
    return {
        "settings": {
            name: {"before": in_json(name, before), "after": in_json(name, now)}
            for name, (before, now) in adjusted(app).items()
        },
        "kept_settings": {each.setting: each.hint for each in overridden(app)},
        "tasks": {
            task: {"jobs": jobs, "is_known": task in app.tasks}
            for task, jobs in guarded(app, sources).items()
        },
        "to_look_at": to_look_at(app, sources),
        "schedules": {
            name: {"jobs": list(written.jobs), "reports": written.reports}
            for name, written in texts.items()
        },
    }
