"""What a beat does first when it begins to lead, or could not for a while."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from celery import Celery
from redbeat.schedulers import RedBeatSchedulerEntry, get_redis

from supervisor.app import supervise
from supervisor.beat import scheduler
from supervisor.beat.reload import Reloading
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.integrations import notify
from supervisor.job.run import RunState
from supervisor.ledger import leader
from supervisor.ledger.leader import SILENCE, SILENCES_KEPT
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import silences
from supervisor.ledger.replies import ms_of
from supervisor.settings import Settings
from supervisor.ticks import emission
from tests.logged import capture_logs
from tests.proxy import proxy_to
from tests.waiting import patience, wait_until

EACH_SECOND = "jobs: {job: {task: t, every: 1s, overlap: allow, catchup: none%s}}"


def test_what_files_pause_while_the_ledger_is_unavailable_is_not_run(
    tmp_path: Path,
) -> None:
    jobs = tmp_path / "schedules" / "jobs.yaml"
    jobs.parent.mkdir()
    jobs.write_text(EACH_SECOND % "")
    with EmbeddedServer(tmp_path / "valkey") as server:
        app = supervise(Celery("away", broker=server.url), schedules=jobs.parent)
        beat, ledger = SupervisedScheduler(app, lazy=True), Ledger.open(Settings(server.url))
        wait_until(lambda: (beat.tick(), ledger.history("job", 99))[1])
        before = len(ledger.history("job", 99))
        server.stop()
        beat.tick()
        jobs.write_text(EACH_SECOND % ", paused: true")
        server.start()
        wait_until(lambda: (beat.tick(), ledger.job("job").counters.get("excluded:paused"))[1])
        admitted = [r for r in ledger.history("job", 99) if r.state is not RunState.EXCLUDED]
        assert len(admitted) == before
        beat.close()
        app.close()
        ledger.client.close()


def test_what_was_due_is_no_later_for_the_files_that_a_new_leader_reads(
    ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.yaml").write_text(EACH_SECOND % "")
    app = supervise(Celery("late", broker=redis_url), schedules=tmp_path)
    first, second = SupervisedScheduler(app, lazy=True), SupervisedScheduler(app, lazy=True)
    wait_until(lambda: (first.tick(), ledger.scheduled())[1])
    first.close()
    until = ledger.now() + timedelta(seconds=1.5)
    wait_until(lambda: ledger.now() > until)
    monkeypatch.setattr(emission, "PROMPT", timedelta(seconds=1))
    looked_at = []

    def read_for_long(_: Reloading, now: datetime, __: str | None) -> None:
        looked_at.append(now)
        wait_until(lambda: ledger.now() > now + timedelta(seconds=2.5))

    monkeypatch.setattr(Reloading, "begin", read_for_long)
    second.tick()
    nominal = [run.nominal_at for run in ledger.history("job", 99)]
    assert any(at <= looked_at[0] and at > until - timedelta(seconds=1) for at in nominal)
    second.close()
    app.close()


@pytest.mark.parametrize(("url", "sentences"), [("mailtos://a:b@h.test", 1), ("https://h", 0)])
def test_notices_that_cannot_be_sent_are_said_in_a_sentence_at_the_start(
    ledger: Ledger,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    sentences: int,
) -> None:
    monkeypatch.setattr(notify, "find_spec", lambda name: None)  # as where Apprise is missing
    job = {"task": "t", "every": "1h", "notify": [url]}
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": {"a": job, "b": job}}))
    app = supervise(Celery("unsent", broker=redis_url), schedules=tmp_path)
    beat = SupervisedScheduler(app, lazy=True)
    with capture_logs() as logged:
        wait_until(lambda: (beat.tick(), ledger.job_names())[1])
        beat.tick()
        beat.tick()
    found = [event for event in logged if event["event"] == "notices not sent"]
    assert [event["reason"] for event in found] == [notify.MISSING] * sentences
    beat.close()
    app.close()


def test_a_leader_that_cannot_emit_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "RESIGN_AFTER", timedelta(seconds=1))
    jobs = tmp_path / "schedules" / "jobs.yaml"
    jobs.parent.mkdir()
    jobs.write_text(EACH_SECOND % "")
    with EmbeddedServer(tmp_path / "valkey") as server:
        ledger = Ledger.open(Settings(server.url))
        user = ("ACL", "SETUSER", "first")
        ledger.client.execute_command(*user, "on", ">x", "~*", "&*", "+@all")
        urls = (f"redis://first:x@{server.url.rpartition('@')[2]}", server.url)
        apps = [supervise(Celery("same", broker=url), schedules=jobs.parent) for url in urls]
        first, second = (SupervisedScheduler(app, lazy=True) for app in apps)
        wait_until(lambda: (first.tick(), ledger.scheduled())[1])
        # It may do what a look does, and write no time at which a job is due.
        ledger.client.execute_command(*user, "-zadd")
        before = len(ledger.history("job", 99))
        wait_until(
            lambda: (first.tick(), second.tick(), len(ledger.history("job", 99)) > before)[2]
        )
        for beat, app in zip((first, second), apps, strict=True):
            beat.close()
            app.close()
        ledger.client.close()


def test_a_beat_that_hears_late_that_it_leads_emits_nothing(
    ledger: Ledger, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "LEADER_TTL", timedelta(seconds=1))
    with proxy_to(redis_url) as way, Celery("late", broker=redis_url, set_as_current=False) as app:
        supervise(app, redis_url=way.url)
        entry = RedBeatSchedulerEntry("stock", "proj.task", timedelta(seconds=1), app=app).save()
        ledger.client.zadd("redbeat::schedule", {entry.key: 1})
        beat = SupervisedScheduler(app, lazy=True)
        own = beat._leader
        other = ledger.leader(own.leadership.key, own._schedule)
        other.look()  # the server knows the function
        other.resign()
        way.freeze_after = own.leadership.token.encode()
        tick = Thread(target=beat.tick, daemon=True)
        tick.start()
        wait_until(lambda: not way.carries.is_set())
        wait_until(lambda: other.look().leads)
        way.thaw()
        tick.join(patience(10))
        assert ledger.client.llen("celery") == 0
        assert not beat._leads
        beat.close()


def test_what_beat_schedule_no_longer_has_stays_where_it_is_a_job(
    ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {job: {task: t, every: 1h, args: [1]}}")
    for names in (("job", "other"), ("job",), ()):
        with Celery("moves", broker=redis_url, set_as_current=False) as app:
            supervise(app, schedules=tmp_path)
            app.conf.beat_schedule = {name: {"task": "t", "schedule": 3600.0} for name in names}
            beat = SupervisedScheduler(app)
            wait_until(lambda beat=beat: (beat.tick(), ledger.loaded_digest())[1])  # type: ignore[misc]
            beat.setup_schedule()  # as when it leads again
            found = {"redbeat:job", *(f"redbeat:{name}" for name in names)}
            listed = set(ledger.client.zrange("redbeat::schedule", 0, -1))
            assert listed - {"redbeat:celery.backend_cleanup"} == found
            assert '"args": [1]' in str(ledger.client.hget("redbeat:job", "definition"))
            beat.close()
            get_redis(app).close()


def test_the_newest_times_without_a_beat_are_remembered(ledger: Ledger) -> None:
    beat, first = ledger.leader("redbeat::lock", "redbeat::schedule"), ledger.now()
    ticked = [first + 2 * number * SILENCE for number in range(SILENCES_KEPT + 3)]
    for at in (first, *ticked):
        assert beat.look(at).leads
    spans = [(start, end) for start, end in pairwise(ticked)]
    found = [(ms_of(start), ms_of(end)) for start, end in silences(ledger)]
    newest = spans[-SILENCES_KEPT:]
    assert found == [(ms_of(start), ms_of(end)) for start, end in reversed(newest)]
