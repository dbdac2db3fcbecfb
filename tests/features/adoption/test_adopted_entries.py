"""RedBeat's entries that an app's own code saves, taken under the guard by a real beat."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from kombu import Queue
from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import ensure_conf
from redbeat.schedules import rrule

from supervisor import jobs
from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.errors import JobElsewhere
from supervisor.features.adoption.import_celery import read_redbeat
from supervisor.features.adoption.imported import write
from supervisor.features.adoption.release import give_back, release_of
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.operate.job_edits import JobEdits
from supervisor.operate.unguarded import entries_lost
from supervisor.operate.unguarded import unguarded as every_unguarded
from supervisor.web.access import Access
from tests.commands import Supervisor, as_json
from tests.jobs import entered
from tests.logged import capture_logs
from tests.queues import take_all
from tests.tools.web.visits import visiting
from tests.waiting import wait_until

HOUR = timedelta(hours=1)


@pytest.fixture
def app(redis_url: str, ledger: Ledger) -> Iterator[Celery]:
    with supervise(Celery("adopting", broker=redis_url), adopt_entries=True) as app:
        yield app
        app.redbeat_redis.connection_pool.disconnect()  # type: ignore[attr-defined]


@pytest.fixture
def beat(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisedScheduler]:
    """Leads, and compares in each turn."""
    monkeypatch.setattr("supervisor.features.adoption.adopted.REST", 0)
    with closing(SupervisedScheduler(app, lazy=True)) as beat:
        beat.tick()
        yield beat


class Own(BaseSchedule):
    """A schedule of the app's own."""


def save(app: Celery, name: str, when: Any = HOUR, **more: Any) -> RedBeatSchedulerEntry:
    if isinstance(when, timedelta):
        when = schedule(when, app=app)
    return RedBeatSchedulerEntry(name, "proj.task", when, app=app, **more).save()


def read(app: Celery, name: str) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry.from_key(ensure_conf(app).key_prefix + name, app=app)


def adopted(app: Celery) -> list[str]:
    return [job.name for job in jobs.list(source="redbeat", app=app)]


def unguarded(app: Celery, ledger: Ledger) -> list[str]:
    found = Entries(app, ledger).unguarded()
    return sorted(found.keys() - {"celery.backend_cleanup"})


def test_a_saved_entry_is_a_job_after_a_turn(app: Celery, beat: SupervisedScheduler) -> None:
    save(app, "hourly", args=["${HOME}"], kwargs={"tenant": 7}, options={"queue": "slow"})
    save(app, "nightly", crontab(30, 2, app=app), enabled=False)
    beat.tick()
    hourly, nightly = jobs.list(app=app)
    assert (hourly.spec.every, hourly.spec.queue, hourly.source) == (HOUR, "slow", "redbeat")
    assert hourly.place == "RedBeat's schedule"
    assert (hourly.spec.args, hourly.spec.kwargs) == (("$${HOME}",), {"tenant": 7})
    assert (nightly.spec.cron, nightly.paused) == ("30 2 * * *", True)


def test_an_entry_that_is_no_job_is_not_replaced_by_a_put(app: Celery) -> None:
    save(app, "hourly")
    with pytest.raises(JobElsewhere, match="RedBeat's schedule"):
        jobs.put("hourly", app=app, task="proj.task", every="2h")
    assert read(app, "hourly").enabled
    assert jobs.list(app=app) == []


def test_an_adopted_entry_is_emitted_through_the_ledger(
    app: Celery, beat: SupervisedScheduler, ledger: Ledger
) -> None:
    saved = save(app, "secondly", timedelta(seconds=1))
    beat.tick()

    def runs() -> list[str]:
        beat.tick()
        return [run.id for run in ledger.history("secondly")]

    wait_until(lambda: len(runs()) > 1)
    entry = read(app, "secondly")
    assert entry.enabled
    assert entry.schedule == saved.schedule
    assert entry.last_run_at > saved.last_run_at
    assert entry.total_run_count >= 1
    assert all(id.startswith("secondly@") for id in runs())


def test_an_entry_that_is_saved_again_is_the_jobs_new_schedule(
    app: Celery, beat: SupervisedScheduler
) -> None:
    entry = save(app, "edited")
    beat.tick()
    before = jobs.get("edited", app=app)
    entry.enabled = False
    entry.schedule = schedule(2 * HOUR, app=app)
    entry.save()
    beat.tick()
    after = jobs.get("edited", app=app)
    assert (after.spec.every, after.paused) == (2 * HOUR, True)
    assert after.version > before.version
    save(app, "edited")
    beat.tick()
    assert not jobs.get("edited", app=app).paused


def test_an_entry_whose_name_no_job_can_have_keeps_it(
    app: Celery, beat: SupervisedScheduler, ledger: Ledger
) -> None:
    saved = save(app, "tenant 42", timedelta(seconds=1))
    save(app, "tenant-42", 2 * HOUR)
    save(app, "poll in/box")
    beat.tick()
    assert adopted(app) == ["poll-in-box", "tenant-42", "tenant-42-2"]
    assert jobs.get("poll-in-box", app=app).place == "RedBeat's schedule: 'poll in/box'"
    assert jobs.get("tenant-42", app=app).spec.every == 2 * HOUR
    with closing(SupervisedScheduler(app, lazy=True)) as beside:  # it knows the names as well
        assert unguarded(app, ledger) == []

        def runs() -> list[str]:
            beat.tick()
            beside.tick()
            return [run.id for run in ledger.history("tenant-42-2")]

        wait_until(lambda: len(runs()) > 1)
    assert read(app, "tenant 42").last_run_at > saved.last_run_at
    assert ledger.history("tenant-42") == []
    save(app, "tenant 42")
    beat.tick()
    assert jobs.get("tenant-42-2", app=app).spec.every == HOUR
    saved.delete()
    beat.tick()
    assert adopted(app) == ["poll-in-box", "tenant-42"]
    with pytest.raises(KeyError):
        read(app, "tenant 42")
    give_back(app, ledger, release_of(app, ledger, with_entries=True))
    assert unguarded(app, ledger) == ["poll in/box", "tenant-42"]


def test_names_that_would_harm_a_terminal_are_shown_harmlessly(
    app: Celery, beat: SupervisedScheduler, ledger: Ledger
) -> None:
    names = ["\x1b[31mred\n", "nul\0", "a" * 300, "a" * 301, "日本"]
    for name in names:
        save(app, name)
    beat.tick()
    listed = jobs.list(app=app)
    assert len(listed) == len(names)
    assert all((job.place or "").isprintable() and len(job.place or "") < 130 for job in listed)
    assert unguarded(app, ledger) == []


def test_a_job_made_of_an_entry_leaves_beat_schedule_its_names(
    redis_url: str, ledger: Ledger
) -> None:
    app = Celery("static", broker=redis_url, set_as_current=False)
    app.conf.beat_schedule = {"tenant-42": {"task": "proj.task", "schedule": 3600}}
    supervise(app, adopt_entries=True)
    with app:
        for _ in range(2):  # a beat that is started again reads beat_schedule again
            with closing(SupervisedScheduler(app, lazy=True)) as beat:
                beat.tick()
                save(app, "tenant 42")
                beat.tick()
                wait_until(lambda b=beat: b.tick() and adopted(app))
                assert unguarded(app, ledger) == ["tenant-42"]
    assert adopted(app) == ["tenant-42-2"]


def test_a_deleted_entry_is_a_removed_job(app: Celery, beat: SupervisedScheduler) -> None:
    entry = save(app, "gone")
    beat.tick()
    assert adopted(app) == ["gone"]
    entry.delete()
    beat.tick()
    assert adopted(app) == []
    with pytest.raises(KeyError):
        read(app, "gone")


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("easter", {"when": rrule("YEARLY", byeaster=0)}, "no key for 'byeaster'"),
        ("routed", {"options": {"routing_key": "a.b"}}, "option 'routing_key'"),
        ("", {}, "it has no name"),
    ],
)
def test_an_entry_without_a_translation_stays_unguarded_and_is_named_once(
    app: Celery, beat: SupervisedScheduler, ledger: Ledger, name: str, more: Any, why: str
) -> None:
    save(app, name, **more)
    with capture_logs() as logs:
        beat.tick()
        beat.tick()
    logged = [log["reason"] for log in logs if log["event"] == "entry left unguarded"]
    assert len(logged) == 1
    assert why in logged[0]
    assert adopted(app) == []
    assert name in Entries(app, ledger).unguarded()


def test_entries_of_beat_schedule_are_left_to_redbeat(redis_url: str, ledger: Ledger) -> None:
    app = Celery("static", broker=redis_url, set_as_current=False)
    app.conf.beat_schedule = {"static": {"task": "proj.task", "schedule": 3600}}
    supervise(app, adopt_entries=True)
    with app, closing(SupervisedScheduler(app, lazy=True)) as beat:
        beat.tick()
        beat.tick()
        assert adopted(app) == []
        assert "static" in Entries(app, ledger).unguarded()


def test_an_entry_that_redbeat_cannot_store_costs_itself_only(
    redis_url: str, ledger: Ledger
) -> None:
    class Word(StrEnum):
        LAST = "last"

    entry = {"task": "proj.task", "schedule": 3600}
    app = Celery("odd", broker=redis_url, set_as_current=False)
    app.conf.beat_schedule = {"edited": entry, "described": {**entry, "description": "for django"}}
    with supervise(app), closing(SupervisedScheduler(app, lazy=True)) as beat:
        beat.tick()
        assert unguarded(app, ledger) == ["described", "edited"]
    odd = {"args": [uuid4()], "options": {"queue": Queue("x")}, "schedule": Own(), "nonsense": 1}
    refused = {f"odd {key}": {**entry, key: value} for key, value in odd.items()}
    last = {**entry, "task": "celery.chain"}
    app.conf.beat_schedule = {**refused, "edited": refused["odd args"], Word.LAST: last}
    with app, capture_logs() as logs, closing(SupervisedScheduler(app, lazy=True)) as beat:
        beat.tick()
        assert unguarded(app, ledger) == ["last"]
        told = {log["entry"] for log in logs if log["event"] == "entry not stored"}
        assert told == {*refused, "edited"} - {"odd nonsense"}  # of which RedBeat's own log tells
        listed = {one.entry: one for one in every_unguarded(app, ledger)}
        assert all(listed[name].reason.startswith("RedBeat cannot store it") for name in refused)
        assert listed["last"].reason.startswith("of beat_schedule: celery.chain is no task")
        assert [*entries_lost(app, Entries(app, ledger))] == [*refused, "edited"]


def test_an_adopted_entry_is_edited_only_where_it_was_saved(
    app: Celery, beat: SupervisedScheduler
) -> None:
    save(app, "theirs")
    beat.tick()
    with pytest.raises(JobElsewhere, match="RedBeat's schedule"):
        jobs.put("theirs", task="t", every="1m", app=app)


def test_what_an_entry_would_refuse_is_foreseen_and_closes_no_schedule(
    app: Celery, ledger: Ledger
) -> None:
    jobs.put("mine", task="t", every="1s", app=app)
    save(app, "theirs")
    check = JobEdits(ledger, app).check("theirs", {"task": "t", "every": "1m"})
    assert "RedBeat's schedule" in check.problems[0]
    before = ledger.marks(["mine"])
    loaded_at = before["mine"].watermark
    assert loaded_at
    wait_until(lambda: ledger.now() > loaded_at + timedelta(seconds=1))
    with pytest.raises(JobElsewhere, match="RedBeat's schedule"):
        jobs.put_many({n: {"task": "t", "every": "1m"} for n in ("mine", "theirs")}, app=app)
    assert (ledger.marks(["mine"]), ledger.history("mine")) == (before, [])


def test_what_is_emitted_unguarded_is_listed_with_the_reason(
    app: Celery, ledger: Ledger, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(app, "tenant:42")
    save(app, "routed", options={"routing_key": "a.b"})
    here = "tests.features.adoption.test_adopted_entries"
    monkeypatch.setattr(f"{here}.saving", app, raising=False)
    listed = as_json(supervisor("jobs", "--unguarded", "--json", app=f"{here}:saving"))
    found = {each["entry"]: each["reason"] for each in listed}
    assert found.pop("celery.backend_cleanup", None) in (None, "Celery's own")
    assert "routing_key" in found["routed"]
    assert found["tenant:42"].startswith("a job is made of it when beat looks next")
    assert all(each["next_due_at"].endswith("Z") for each in listed)
    with visiting(ledger, Access(), app) as client:
        assert client.get("/api/v1/unguarded").json() == listed
        assert "routing_key" in client.get("/queues").text
    with visiting(ledger, Access()) as client:
        assert client.get("/api/v1/unguarded").json() == []
        assert "without a guard" not in client.get("/queues").text


def test_files_that_take_the_place_of_an_entry_say_so(
    app: Celery,
    ledger: Ledger,
    supervisor: Supervisor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(app, "theirs")
    file = tmp_path / "a.yaml"
    file.write_text("jobs: {theirs: {task: proj.task, every: 1h}}")
    monkeypatch.setattr("tests.features.adoption.test_adopted_entries.saving", app, raising=False)

    @app.task(name="proj.task")
    def task() -> None: ...

    result = supervisor(
        "plan", str(file), app="tests.features.adoption.test_adopted_entries:saving"
    )
    assert f"job 'theirs' ({file}:1) takes the place of RedBeat's entry 'theirs'" in result.stderr
    entries, spec = Entries(app, ledger), JobSpec(name="theirs", task="t")
    with capture_logs() as logged:
        load(ledger, entries, {"theirs": spec}, "one", ledger.now())
    [event] = [event for event in logged if event["event"] == "entry replaced by job"]
    assert event["entry"] == "theirs"


@pytest.mark.parametrize("of_beat_schedule", [False, True])
def test_a_job_of_files_replaces_the_entry_its_name_comes_from(
    redis_url: str, ledger: Ledger, of_beat_schedule: bool
) -> None:
    app = supervise(Celery("plain", broker=redis_url, set_as_current=False))
    entries = Entries(app, ledger)
    spec = JobSpec(name="poll-inbox", task="proj.task", every="1s", entry="poll inbox")
    if of_beat_schedule:
        app.conf.beat_schedule = {"poll inbox": {"task": "proj.task", "schedule": 1.0}}
    with app, closing(SupervisedScheduler(app, lazy=False)) as beat:
        if not of_beat_schedule:
            save(app, "poll inbox", timedelta(seconds=1))
        beat.tick()
        load(ledger, entries, {"poll-inbox": spec}, "one", ledger.now())  # as `supervisor apply`
        take_all(ledger.client)
        wait_until(lambda: beat.tick() and ledger.client.llen("celery") > 0)
        second = int(time.time()) + 2  # RedBeat's own code would have emitted the entry by then
        wait_until(lambda: beat.tick() and time.time() > second)
        texts = ledger.client.lrange("celery", 0, -1)
        assert {json.loads(text)["headers"]["id"].partition("@")[0] for text in texts} == {
            "poll-inbox"
        }
        assert unguarded(app, ledger) == []
        assert (read(app, "poll inbox").name, read(app, "poll inbox").enabled) == (
            "poll inbox",
            False,
        )
        assert entered(ledger) == {"poll-inbox": spec}
    with closing(SupervisedScheduler(app, lazy=False)) as again:
        again.setup_schedule()
        assert unguarded(app, ledger) == [], "it is entered again when beat starts"
    [entry] = release_of(app, ledger, with_entries=True).entries
    assert entry.name == "poll inbox"
    load(ledger, entries, {}, "two", ledger.now())
    assert not ledger.client.exists("redbeat:poll inbox", ledger.keys.entries)


def test_each_job_of_files_replaces_the_entry_that_it_names(app: Celery, ledger: Ledger) -> None:
    names = ("poll inbox", "poll/inbox", "日报", "周报", "poll-inbox", "other")
    for name in names:
        save(app, name)
    entries = Entries(app, ledger)
    items = read_redbeat(app, ledger.now())
    written = write([], items)
    assert written.reports == []
    document = yaml.safe_load(written.text)["jobs"]
    assert document.keys() == {
        *("poll-inbox", "poll-inbox-2", "poll-inbox-3", "other"),
        *("job", "job-2"),
    }
    specs = {name: JobSpec(name=name, **values) for name, values in document.items()}
    load(ledger, entries, specs, "one", ledger.now())
    assert unguarded(app, ledger) == []
    assert sorted(map(entries.name, specs)) == sorted(names)
    released = release_of(app, ledger, with_entries=True).entries
    assert sorted(entry.name for entry in released) == sorted(names)


def test_a_job_that_names_its_entry_later_replaces_it(app: Celery, ledger: Ledger) -> None:
    save(app, "poll inbox")
    entries = Entries(app, ledger)
    spec = JobSpec(name="poll-inbox", task="t", every=HOUR)
    load(ledger, entries, {spec.name: spec}, "one", ledger.now())
    assert unguarded(app, ledger) == ["poll inbox"]
    due = ledger.client.zscore("redbeat::schedule", "redbeat:poll-inbox")
    named = spec.model_copy(update={"entry": "poll inbox"})
    load(ledger, entries, {spec.name: named}, "two", ledger.now())
    assert unguarded(app, ledger) == []
    scores = dict(ledger.client.zrange("redbeat::schedule", 0, -1, withscores=True))
    assert scores == {"redbeat:poll inbox": due}
    assert not ledger.client.exists("redbeat:poll-inbox")
    assert entered(ledger) == {spec.name: named}


def test_a_put_replaces_no_entry_of_the_apps_own_by_its_entry_key(app: Celery) -> None:
    save(app, "poll inbox")
    with pytest.raises(JobElsewhere, match="RedBeat's schedule"):
        jobs.put("poll-inbox", app=app, task="t", every="1h", entry="poll inbox")


def test_without_adopt_entries_they_are_given_back(
    app: Celery, beat: SupervisedScheduler, redis_url: str, ledger: Ledger
) -> None:
    save(app, "returned")
    beat.tick()
    beat.close()
    before = read(app, "returned")
    plain = supervise(Celery("adopting", broker=redis_url, set_as_current=False))
    with plain, closing(SupervisedScheduler(plain, lazy=True)) as other:
        other.tick()
        assert adopted(plain) == []
        assert "returned" in Entries(plain, ledger).unguarded()
    after = read(app, "returned")
    assert (after.enabled, after.schedule) == (True, before.schedule)
    assert after.last_run_at == before.last_run_at


def test_release_leaves_adopted_entries_as_the_app_saved_them(
    app: Celery, beat: SupervisedScheduler, ledger: Ledger
) -> None:
    save(app, "kept", options={"queue": "slow"})
    beat.tick()
    text = ledger.client.hget("redbeat:kept", "definition")
    beat.close()
    give_back(app, ledger, release_of(app, ledger, with_entries=True))
    kept = ledger.client.hgetall("redbeat:kept")
    assert kept.keys() == {"definition", "meta"}
    assert kept["definition"] == text
