"""What `adopt --dry-run` says of an app."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from redbeat.schedulers import RedBeatSchedulerEntry, get_redis

from supervisor.app import settled, supervise
from supervisor.operate.adoption import report, shown, sources_of
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
    listed = settled(supervised)
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


def test_a_part_without_lines_has_no_heading(redis_url: str) -> None:
    app = supervise(Celery("proj", broker=redis_url, set_as_current=False))
    lines = [*report(app, sources_of(app, EPOCH))]
    assert [line for line in lines if line.endswith(":")] == ["Settings that supervise() changes:"]
    assert lines[-1] == "The app has no schedule that is not a job already."
    get_redis(app).close()
