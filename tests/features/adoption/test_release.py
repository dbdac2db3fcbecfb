"""Jobs as entries of RedBeat's own, with the same times or not at all; and whose keys go."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from celery import Celery
from celery.schedules import schedule
from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry, get_redis

from supervisor.app import supervise
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.errors import Unavailable
from supervisor.features.adoption.import_celery import read_beat_schedule, when_of
from supervisor.features.adoption.imported import write
from supervisor.features.adoption.release import give_back, keys_of, release_of
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.schedule import schedule_of
from supervisor.sending.app_settings import required_settings
from supervisor.sending.publisher import Publisher
from supervisor.store.keys import Keys


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    with Celery("proj", broker=redis_url, set_as_current=False) as app:
        app.conf.timezone = "Europe/Berlin"
        yield supervise(app)
        get_redis(app).close()


def loaded(app: Celery, ledger: Ledger, **values: Any) -> JobSpec:
    spec = JobSpec.model_validate({"name": "job", "task": "proj.task", **values})
    entries = Entries(app, ledger)
    load(ledger, entries, {spec.name: spec}, "digest", ledger.now())
    return spec


def released(app: Celery, ledger: Ledger, **values: Any) -> RedBeatSchedulerEntry:
    """The job's entry, as RedBeat reads it once the ledger is gone."""
    loaded(app, ledger, **values)
    release = release_of(app, ledger, with_entries=True)
    assert release.lost == {}
    give_back(app, ledger, release)
    return RedBeatSchedulerEntry.from_key("redbeat:job", app=app)


def test_a_job_goes_back_under_the_name_that_beat_schedule_has(app: Celery, ledger: Ledger) -> None:
    """Else RedBeat makes a second entry of it, and emits both."""
    app.conf.beat_schedule = {"a job": {"task": "proj.task", "schedule": 60.0}}
    loaded(app, ledger, name="a-job", every="1m", entry="a job")
    give_back(app, ledger, release_of(app, ledger, with_entries=True))
    beat = RedBeatScheduler(app, lazy=True)
    beat.setup_schedule()
    names = {
        key.removeprefix("redbeat:") for key in get_redis(app).zrange("redbeat::schedule", 0, -1)
    }
    assert names - {"celery.backend_cleanup"} == {"a job"}


@pytest.mark.parametrize("names", [["a job", "a-job"], ["a-job", "a job"], ["a job", "a:job"]])
def test_names_that_would_be_one_go_back_as_they_were_told_apart(
    app: Celery, ledger: Ledger, names: list[str]
) -> None:
    """As `adopt` writes them: the second has a number after its name, and says of what entry."""
    app.conf.beat_schedule = {n: {"task": "proj.task", "schedule": 60.0} for n in names}
    text = write([], read_beat_schedule(app, ledger.now())).text
    jobs = [JobSpec(name=name, **values) for name, values in yaml.safe_load(text)["jobs"].items()]
    assert {spec.name for spec in jobs} == {"a-job", "a-job-2"}
    specs = {spec.name: spec for spec in jobs}
    load(ledger, Entries(app, ledger), specs, "digest", ledger.now())
    release = release_of(app, ledger, with_entries=True)
    assert {entry.name for entry in release.entries} == {*names}


def times(spec: JobSpec, at: datetime) -> list[datetime]:
    seen = []
    for _ in range(20):
        following = schedule_of(spec).next_after(at)
        if following is None:
            break
        seen.append(at := following)
    return seen


BERLIN = {"timezone": "Europe/Berlin"}
MIDNIGHT = {"start_at": "2026-01-05T00:00:00"}
HOURS = ",".join(map(str, range(24)))


@pytest.mark.parametrize(
    "when",
    [
        {"every": "90s"},
        {"cron": "30 2 * JAN-MAR MON-FRI", **BERLIN},
        {"cron": "@weekly", **BERLIN},
        {"cron": "5 4 */2 * MON", **BERLIN},
        {"cron": "5 4 1-31 * MON", **BERLIN},
        {"cron": "*/7 8-18 1,15 * *", **BERLIN},
        {"rrule": "FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR;BYHOUR=6;BYMINUTE=30"},
        {"rrule": "FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR;BYHOUR=6;BYMINUTE=30", **BERLIN},
        {"rrule": f"FREQ=DAILY;BYHOUR={HOURS};BYMINUTE=0,30", **MIDNIGHT, **BERLIN},
        {"rrule": "FREQ=WEEKLY", "start_at": "2026-01-06T03:30:00", **BERLIN},
        {"rrule": "FREQ=YEARLY;BYMONTH=4,10", "start_at": "2026-01-06T03:30:00", **BERLIN},
        {"rrule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE", "start_at": "2026-01-05T03:30:00"},
    ],
    ids=str,
)
def test_a_released_entry_has_the_times_of_the_job(
    app: Celery, ledger: Ledger, when: dict[str, Any]
) -> None:
    entry = released(app, ledger, **when)
    spec = JobSpec.model_validate({"name": "job", "task": "proj.task", **when})
    now = datetime.now(UTC)
    back = when_of(entry.schedule, app, now).values
    again = JobSpec.model_validate({"name": "job", "task": "t", **back})
    assert times(again, now) == times(spec, now)


def test_an_interval_goes_on_in_step_with_its_phase(app: Celery, ledger: Ledger) -> None:
    entry = released(app, ledger, every="1h", phase="20m")
    assert entry.last_run_at.minute == 20
    assert timedelta() <= ledger.now() - entry.last_run_at < timedelta(hours=1)
    assert not entry.is_due()[0]


def test_a_released_entry_has_the_arguments_queue_and_limits_of_the_job(
    app: Celery, ledger: Ledger
) -> None:
    entry = released(
        app,
        ledger,
        every="1h",
        args=[1, "$${x}"],
        kwargs={"a": {"b": None}},
        queue="slow",
        start_deadline="10m",
        time_limit="5s",
        paused=True,
    )
    assert (entry.task, entry.args, entry.kwargs) == ("proj.task", [1, "${x}"], {"a": {"b": None}})
    assert entry.options == {"queue": "slow", "expires": 600, "time_limit": 5}
    assert not entry.enabled


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"cron": "30 2 * * *", "timezone": "Asia/Tokyo"}, "by the clock of Asia/Tokyo"),
        ({}, "RedBeat has nothing for when triggered"),
        ({"after": "other"}, "RedBeat has nothing for after other"),
        ({"cron": "30 2 1 * MON", **BERLIN}, "RedBeat has nothing for 30 2 1 \\* MON"),
        ({"cron": ["0 9 * * 1-5", "0 12 * * 6"], **BERLIN}, "RedBeat has nothing for 0 12"),
        ({"cron": ["30 2 * * *", "30 2 L * *"]}, "RedBeat has nothing for 30 2"),
        ({"cron": "30 2 L * *"}, "RedBeat has nothing for 30 2 L"),
        ({"cron": "30 2 * * 1#2"}, "RedBeat has nothing for"),
        ({"rrule": "FREQ=MONTHLY;BYDAY=2TU;BYHOUR=9;BYMINUTE=0"}, "RedBeat has nothing for"),
        ({"rrule": "FREQ=MONTHLY;BYMONTHDAY=-1", **BERLIN}, "RedBeat has nothing for FREQ=MONTHLY"),
        ({"rrule": "FREQ=DAILY;BYSECOND=30", **BERLIN}, "RedBeat has nothing for FREQ=DAILY"),
        ({"rrule": "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=1", **BERLIN}, "nothing for FREQ=MONTHLY"),
        (
            {"rrule": "FREQ=DAILY;INTERVAL=2", "start_at": "2026-01-05T03:30:00", **BERLIN},
            "RedBeat has nothing for FREQ=DAILY;INTERVAL=2",
        ),
        (
            {"rrule": "FREQ=DAILY;BYHOUR=3", "start_at": "2099-01-01T00:00:00", **BERLIN},
            "RedBeat has nothing for FREQ=DAILY",
        ),
        ({"rrule": f"FREQ=DAILY;BYHOUR={HOURS};BYMINUTE=0,30"}, "by the clock of UTC"),
        ({"at": ["2099-01-01T00:00:00Z"]}, "RedBeat has no list of times"),
        ({"every": "1h", "exclude": ["SAT-SUN"], "jitter": "1m"}, "'exclude' and 'jitter'"),
        ({"every": "1h", "start_at": "2099-01-01T00:00:00Z"}, "RedBeat has nothing for 'start_at'"),
        ({"every": "1h", "kwargs": {"key": "${API_KEY}"}}, "refer to a secret"),
        (
            {"every": "1h", "task": None, "steps": [{"task": "a.b", "priority": 1}]},
            "it has several tasks",
        ),
    ],
    ids=str,
)
def test_a_job_that_redbeat_cannot_emit_goes_and_is_reported(
    app: Celery, ledger: Ledger, values: dict[str, Any], why: str
) -> None:
    loaded(app, ledger, **values)
    release = release_of(app, ledger, with_entries=True)
    assert release.entries == []
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(release.lost["job"])
    give_back(app, ledger, release)
    assert list(ledger.client.scan_iter(match="*", count=100)) == []


def test_entries_go_back_to_the_prefix_that_redbeat_has(redis_url: str) -> None:
    """Those of jobs and others, each with when it is due; one of that name there stays."""
    app = supervise(Celery("proj", broker=redis_url, set_as_current=False), prefix="own")
    ledger = Ledger.open(required_settings(app))
    loaded(app, ledger, every="1h")
    made = RedBeatSchedulerEntry("made", "proj.task", schedule(60.0), app=app)
    made.save().reschedule()
    due_before = ledger.client.zscore("own:redbeat::schedule", made.key)
    ledger.client.hset("redbeat:taken", "definition", "of another app")
    RedBeatSchedulerEntry("taken", "proj.task", schedule(60.0), app=app).save().reschedule()
    give_back(app, ledger, release_of(app, ledger, with_entries=True))
    assert list(ledger.client.scan_iter(match="own:*", count=100)) == []
    due = dict(ledger.client.zrange("redbeat::schedule", 0, -1, withscores=True))
    assert due.keys() == {"redbeat:job", "redbeat:made"}
    assert due["redbeat:made"] == due_before
    assert ledger.client.hgetall("redbeat:taken") == {"definition": "of another app"}
    get_redis(app).close()
    app.close()
    ledger.close()


def test_messages_of_runs_go_and_those_of_others_stay(app: Celery, ledger: Ledger) -> None:
    spec = loaded(app, ledger, every="1h", overlap="queue_all")
    for _ in range(3):
        ledger.trigger(spec)
    assert Publisher(app, ledger).publish(ledger.outbox()) == 1
    app.send_task("proj.other", serializer="json")
    assert ledger.client.llen("celery") == 2
    assert give_back(app, ledger, release_of(app, ledger, with_entries=True)) == 1
    [left] = ledger.client.lrange("celery", 0, -1)
    assert "proj.other" in left


def test_a_broker_that_lets_nobody_take_messages_keeps_them(app: Celery, ledger: Ledger) -> None:
    loaded(app, ledger, every="1h")
    app.conf.broker_url = "memory://"
    assert give_back(app, ledger, release_of(app, ledger, with_entries=True)) is None


def test_an_unavailable_broker_leaves_everything_as_it_was(app: Celery, ledger: Ledger) -> None:
    loaded(app, ledger, every="1h")
    app.conf.broker_url = "amqp://127.0.0.1:1//"
    with pytest.raises(Unavailable):
        give_back(app, ledger, release_of(app, ledger, with_entries=True))
    assert ledger.scheduled().keys() == {"job"}


def test_a_release_leaves_keys_of_other_ledgers(app: Celery, ledger: Ledger) -> None:
    spec = loaded(app, ledger, every="1h")
    ledger.trigger(spec)
    others = Keys("supervisor:two")
    names = [others.jobs, others.run("job@2026"), others.lock("job"), "supervisor", "celery-too"]
    for name in names:
        ledger.client.set(name, "1", px=60_000)
    listed = list(keys_of(ledger))
    assert not set(listed) & set(names)
    assert {ledger.keys.jobs, ledger.keys.lock("job")} <= set(listed)
    give_back(app, ledger, release_of(app, ledger, with_entries=False))
    assert set(ledger.client.scan_iter(match="*", count=100)) == set(names)


def test_a_stock_beat_keeps_what_was_in_beat_schedule_before(app: Celery, ledger: Ledger) -> None:
    app.conf.beat_schedule = {"job": {"task": "proj.task", "schedule": 3600.0}}
    RedBeatScheduler(app)  # enters it as static
    released(app, ledger, every="1h", args=[1])
    app.conf.beat_schedule = {}
    RedBeatScheduler(app)
    assert RedBeatSchedulerEntry.from_key("redbeat:job", app=app).args == [1]


def test_without_entries_nothing_of_redbeats_is_left_that_beat_entered(
    app: Celery, ledger: Ledger
) -> None:
    app.conf.beat_schedule = {"code": {"task": "proj.task", "schedule": 3600.0}}
    RedBeatScheduler(app)
    RedBeatSchedulerEntry("own", "proj.task", schedule(60, app=app), app=app).save()
    loaded(app, ledger, every="1h")
    give_back(app, ledger, release_of(app, ledger, with_entries=False))
    left = set(ledger.client.scan_iter(match="*", count=100))
    assert left == {"redbeat:own", "redbeat::schedule"}


def test_an_app_whose_entries_had_a_prefix_of_ours_gets_them_back(redis_url: str) -> None:
    app = supervise(Celery("proj", broker=redis_url, set_as_current=False), prefix="two")
    ledger = Ledger.open(required_settings(app))
    assert released(app, ledger, every="1h").enabled
    entries = set(ledger.client.scan_iter(match="*", count=100))
    assert entries - {"supervisor:server"} == {"redbeat:job", "redbeat::schedule"}
    ledger.close()
    get_redis(app).close()
