"""What `adopt --dry-run` says of an app."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task
from celery.beat import PersistentScheduler
from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry, get_redis

from supervisor.app import adjusted, supervise
from supervisor.features.adoption.report import jobs_of, report, shown, sources_of, to_look_at
from supervisor.times import EPOCH

SENTINELS = "sentinel://one:26379;sentinel://two:26379/0"


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        ({"broker_url": "redis://u:secret@h/1"}, {}),
        ({"broker_url": "rediss://h/1", "worker_prefetch_multiplier": 8}, {"prefix": "two"}),
        ({"broker_url": "amqp://h//"}, {"redis_url": "redis://:secret@h/2"}),
        ({"broker_url": "redis://h", "REDBEAT_REDIS_URL": "redis://:secret@h/0"}, {}),
        ({"broker_url": SENTINELS, "broker_transport_options": {"master_name": "m"}}, {}),
        ({"beat_scheduler": "redbeat.RedBeatScheduler"}, {}),
    ],
    ids=str,
)
def test_all_settings_that_change_are_listed_without_passwords(
    conf: dict[str, Any], options: dict[str, Any]
) -> None:
    plain, supervised = (Celery("proj", set_as_current=False) for _ in range(2))
    for app in (plain, supervised):
        app.conf.update(conf)
    supervise(supervised, **options)
    before, after = dict(plain.conf.items()), dict(supervised.conf.items())
    changed = {name.lower() for name in after if before.get(name) != after[name]}
    listed = adjusted(supervised)
    assert changed == listed.keys()
    text = "".join(shown(name, value) for name, pair in listed.items() for value in pair)
    assert "secret" not in text


def test_entries_under_the_prefix_of_before_are_found(redis_url: str) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.redbeat_redis_url = redis_url
    RedBeatSchedulerEntry("old", "t", app=app, schedule=60).save()
    later = supervise(Celery("proj", broker=redis_url, set_as_current=False), prefix="two")
    RedBeatSchedulerEntry("new", "t", app=later, schedule=60).save()
    names = [item.source for source in sources_of(later, EPOCH) for item in source.items]  # type: ignore[union-attr]
    assert names == ["redbeat 'old'", "redbeat 'new'"]
    for one in (app, later):
        get_redis(one).close()


def test_a_scheduler_that_stays_and_a_task_that_is_unknown_are_reported(redis_url: str) -> None:
    app = supervise(Celery("proj", broker=redis_url, set_as_current=False))
    app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    app.conf.beat_schedule = {"poll": {"task": "absent", "schedule": 60}}
    lines = "\n".join(report(app, sources_of(app, EPOCH)))
    assert "beat_scheduler stays 'django_celery_beat.schedulers:DatabaseScheduler': a beat" in lines
    assert "absent: of poll; the app has no task of this name" in lines
    get_redis(app).close()


@pytest.mark.parametrize(
    ("scheduler", "is_read"),
    [
        ("celery.beat:PersistentScheduler", True),
        ("redbeat.RedBeatScheduler", True),
        ("proj.beat:TenantScheduler", False),
        (PersistentScheduler, True),
        ("django_celery_beat.schedulers:DatabaseScheduler", False),  # Django is not set up here
    ],
)
@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_schedule_that_the_apps_scheduler_makes_is_named(
    redis_url: str, scheduler: Any, is_read: bool, is_supervised: bool
) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.update(beat_scheduler=scheduler, redbeat_redis_url=redis_url)
    sources = sources_of(supervise(app) if is_supervised else app, EPOCH)
    assert not sources if is_read else "its entries are not read" in sources[0].items[0].why  # type: ignore[union-attr]
    get_redis(app).close()


def test_entries_that_the_code_no_longer_has_are_no_jobs(redis_url: str) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.redbeat_redis_url = redis_url
    app.conf.beat_schedule = {n: {"task": "t", "schedule": 60} for n in ("kept", "gone")}
    RedBeatScheduler(app, lazy=True).setup_schedule()
    RedBeatSchedulerEntry("saved", "t", app=app, schedule=60).save()
    app.conf.beat_schedule = {"kept": {"task": "t", "schedule": 90}}
    found = {item.name: item for item in jobs_of(sources_of(app, EPOCH))}
    assert found.keys() == {"kept", "saved"}
    assert found["kept"].values["every"] == "1m30s", "as the code says, not as RedBeat has it"
    get_redis(app).close()


def test_what_holds_of_jobs_together_is_to_be_looked_at(redis_url: str) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)

    class Singleton(Task):
        """As celery-singleton's: it sends nothing while another call holds its lock."""

        def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...

    def nothing() -> None: ...

    app.task(name="once", base=Singleton)(nothing)
    app.task(name="plain")(nothing)
    entry = {"task": "plain", "schedule": 300}
    app.conf.beat_schedule = {f"job-{n}": entry for n in range(12)}
    app.conf.beat_schedule |= {"one": {"task": "once", "schedule": 60}}
    first, second = to_look_at(supervise(app), sources_of(app, EPOCH))
    assert first.startswith("task once: tests.features.adoption.test_adoption.")
    assert "Singleton has an apply_async of its own" in first
    assert second.startswith("12 jobs with the schedule every 5m start in the same second")
    assert "To look at:" in [*report(app, sources_of(app, EPOCH))]
    get_redis(app).close()


def test_a_limit_that_workers_of_the_apps_pool_refuse_is_to_be_looked_at(redis_url: str) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)

    def nothing() -> None: ...

    app.task(name="plain")(nothing)
    app.conf.worker_pool = "threads"
    limited = {"task": "plain", "schedule": 300, "options": {"soft_time_limit": 60}}
    app.conf.beat_schedule = {"one": limited, "other": {"task": "plain", "schedule": 300}}
    [warning] = to_look_at(supervise(app), sources_of(app, EPOCH))
    assert warning.startswith("job 'one': worker_pool is threads, which lacks what it needs: soft")
    get_redis(app).close()


def test_a_class_with_an_apply_async_of_its_own_is_named_once(redis_url: str) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)

    class OfTheApp(Task):
        """As Indico has one for all of its tasks."""

        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_async(*args, **kwargs)

    def nothing() -> None: ...

    for name in ("mail", "report"):
        app.task(name=name, base=OfTheApp)(nothing)
    app.conf.beat_schedule = {
        name: {"task": name, "schedule": 60 + number}
        for number, name in enumerate(("report", "mail"))
    }
    [line] = to_look_at(supervise(app), sources_of(app, EPOCH))
    assert line.startswith("tasks mail, report: tests.features.adoption.test_adoption.")
    get_redis(app).close()


def test_a_scheduler_given_as_a_class_is_shown_by_its_name(redis_url: str) -> None:
    """Indico sets `beat_scheduler` to its own class."""
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.beat_scheduler = OwnScheduler
    app.conf.beat_schedule = {"poll": {"task": "t", "schedule": 60}}
    sources = sources_of(supervise(app), EPOCH)
    lines = [*report(app, sources)]
    name = "'tests.features.adoption.test_adoption.OwnScheduler'"
    assert any(line.startswith(f"  beat_scheduler stays {name}: ") for line in lines)
    assert not any("<class" in line for line in lines)
    assert [source.name for source in sources if source.has_jobs] == ["beat_schedule"]
    get_redis(app).close()


class OwnScheduler(PersistentScheduler):
    """It may have a schedule of its own."""


def test_a_part_without_lines_has_no_heading(redis_url: str) -> None:
    app = supervise(Celery("proj", broker=redis_url, set_as_current=False))
    lines = [*report(app, sources_of(app, EPOCH))]
    assert [line for line in lines if line.endswith(":")] == ["Settings that supervise() changes:"]
    assert lines[-1] == "The app has no schedule that is not a job already."
    get_redis(app).close()
