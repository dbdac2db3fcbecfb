"""RedBeat's entries in a real Redis, as RedBeat itself saves them, as jobs of a schedule file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import MO, SU
from redbeat.schedulers import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from supervisor.catalog.entries import Entries
from supervisor.catalog.schedule_files import load
from supervisor.features.adoption.import_celery import read_redbeat
from supervisor.features.adoption.imported import ImportedJob, LeftOut, write
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.schedule import schedule_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("proj", broker="redis://", set_as_current=False)
    app.conf.update(timezone="Europe/Berlin")
    app.conf.update(redbeat_redis_url=redis_url, redbeat_redis_options={"socket_timeout": 5})
    return app


def save(app: Celery, name: str, when: Any, **more: Any) -> None:
    when.app = app
    RedBeatSchedulerEntry(name, "proj.task", when, app=app, **more).save()


def jobs(app: Celery) -> dict[str, Any]:
    return {
        item.name: item.values for item in read_redbeat(app, NOW) if isinstance(item, ImportedJob)
    }


def test_all_kinds_of_entries_become_jobs_that_load(app: Celery, tmp_path: Path) -> None:
    save(app, "nightly", crontab(30, 2, day_of_week="mon-fri"), options={"queue": "slow"})
    save(app, "poll inbox", schedule(90), args=[1], kwargs={"folder": "orders"}, enabled=False)
    start = datetime(2026, 1, 5, 3, 30, tzinfo=UTC)
    save(app, "weekly", rrule("WEEKLY", dtstart=start, app=app))
    save(app, "fortnightly", rrule("WEEKLY", dtstart=start, interval=2, app=app))
    save(app, "closing", crontab(0, 18, day_of_month="1,15", day_of_week="mon"))
    written = write([], read_redbeat(app, NOW))
    assert written.reports == []
    (tmp_path / "jobs.yaml").write_text(written.text)
    berlin = {"timezone": "Europe/Berlin"}
    expected: dict[str, dict[str, Any]] = {
        "closing": {
            "rrule": "FREQ=MONTHLY;BYMONTHDAY=1,15;BYDAY=MO;BYHOUR=18;BYMINUTE=0",
            **berlin,
        },
        "fortnightly": {"rrule": "FREQ=WEEKLY;INTERVAL=2", "start_at": "2026-01-05T03:30:00"},
        "nightly": {"cron": "30 2 * * 1-5", "queue": "slow", **berlin},
        "poll-inbox": {
            "every": "90s",
            "args": [1],
            "kwargs": {"folder": "orders"},
            "paused": True,
            "entry": "poll inbox",
        },
        "weekly": {"rrule": "FREQ=WEEKLY", "start_at": "2026-01-05T03:30:00"},
    }
    assert load(tmp_path / "jobs.yaml").specs == {
        name: JobSpec.model_validate({"name": name, "task": "proj.task", **keys})
        for name, keys in expected.items()
    }


@pytest.mark.parametrize(
    "given",
    [
        {"freq": "WEEKLY", "interval": 2, "byweekday": [MO, 4], "wkst": SU},
        {"freq": "MONTHLY", "bysetpos": -1, "byweekday": [0, 1, 2, 3, 4]},
        {"freq": "DAILY", "count": 70},
        {"freq": "DAILY", "until": datetime(2026, 3, 9, 3, 30, tzinfo=UTC)},
        {"freq": "HOURLY", "interval": 5, "dtstart": datetime(2026, 6, 1, 3, 30, tzinfo=UTC)},
        {"freq": "WEEKLY", "dtstart": datetime(2026, 6, 1, 3, tzinfo=timezone(timedelta(hours=2)))},
    ],
    ids=str,
)
def test_a_rule_comes_out_of_redis_with_its_times(app: Celery, given: dict[str, Any]) -> None:
    start = datetime(2026, 1, 5, 3, 30, tzinfo=UTC)
    source = rrule(**{"dtstart": start, **given}, app=app)
    save(app, "job", source)
    schedule = schedule_of(JobSpec.model_validate({"name": "job", **jobs(app)["job"]}))
    theirs = list(islice(source.rrule.xafter(NOW), 20))
    at = NOW
    for expected in theirs:
        at = schedule.next_after(at) or at
        assert at == expected
    assert len(theirs) == 20 or schedule.next_after(at) is None


def test_entries_of_schedule_files_are_left_out(app: Celery, ledger: Ledger) -> None:
    save(app, "theirs", schedule(60))
    with ledger.client.pipeline() as pipe:
        spec = JobSpec(name="ours", task="t", cron="@daily")
        Entries(app, ledger).write(pipe, spec, NOW)
        pipe.execute()
    assert set(jobs(app)) == {"theirs"}


def test_an_entry_that_is_never_due_again_is_read_too(app: Celery, ledger: Ledger) -> None:
    save(app, "done", schedule(60))
    ledger.client.zadd("redbeat::schedule", {"redbeat:done": -1})
    assert set(jobs(app)) == {"done"}


def test_more_entries_than_a_round_trip_holds_are_all_read(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.features.adoption.import_celery.BATCH", 2)
    for number in range(5):
        save(app, f"job-{number}", schedule(60))
    assert list(jobs(app)) == [f"job-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (None, "no definition"),
        ("{", "cannot decode"),
        (json.dumps({"schedule": {"__type__": "crontab", "minute": "99"}}), "cannot decode"),
        (json.dumps({"task": "t", "schedule": {"__type__": "moon"}}), "no schedule"),
        (json.dumps({"task": "t", "schedule": None, "colour": "red"}), "colour"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_reported_and_the_rest_is_imported(
    app: Celery, ledger: Ledger, definition: str | None, reason: str
) -> None:
    save(app, "good", schedule(60))
    ledger.client.zadd("redbeat::schedule", {"redbeat:bad": 0})
    if definition is not None:
        ledger.client.hset("redbeat:bad", "definition", definition)
    bad, good = read_redbeat(app, NOW)
    assert isinstance(bad, LeftOut) and isinstance(good, ImportedJob)
    assert bad.source == "redbeat 'bad'"
    assert reason in bad.why


def test_an_app_that_names_only_a_broker_means_that_redis(app: Celery, redis_url: str) -> None:
    save(app, "nightly", schedule(60))
    plain = Celery("plain", broker=redis_url, set_as_current=False)
    assert set(jobs(plain)) == {"nightly"}


def test_a_prefix_of_redbeats_own_is_followed(redis_url: str) -> None:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, redbeat_redis_options={})
    app.conf.update(redbeat_key_prefix="shop:")
    save(app, "nightly", schedule(60))
    assert set(jobs(app)) == {"nightly"}
