"""What a beat does first when it begins to lead, or could not for a while."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner
from redbeat.schedulers import RedBeatSchedulerEntry, get_redis

from supervisor.app import supervise
from supervisor.beat import reload, scheduler
from supervisor.beat.reload import Reloading
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.beat.service_starts import ServiceStarts, may_run
from supervisor.catalog.load import load
from supervisor.cli import main
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.errors import ForeignLedger
from supervisor.features.notices import services
from supervisor.job.changes import Changes
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import start_id
from supervisor.job.spec import JobSpec
from supervisor.ledger import leader
from supervisor.ledger.leader import ABSENCE, ABSENCES_KEPT
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import absences
from supervisor.operate import why
from supervisor.operate.deployment import read
from supervisor.operate.doctor import owner
from supervisor.operate.question import question_of_job
from supervisor.schedule import emission
from supervisor.sending.app_settings import owner_of
from supervisor.settings import Settings
from supervisor.times import ms_of
from tests.contents import digests
from tests.jobs import MIDNIGHT
from tests.logged import capture_logs
from tests.presence import beat_says
from tests.proxy import proxy_to
from tests.waiting import scaled, wait_until

EACH_SECOND = "jobs: {job: {task: t, every: 1s, overlap: allow, catchup: none%s}}"


def test_what_files_pause_while_the_ledger_is_unavailable_is_not_run(tmp_path: Path) -> None:
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

    def read_for_long(_: Reloading, now: datetime) -> None:
        looked_at.append(now)
        wait_until(lambda: ledger.now() > now + timedelta(seconds=2.5))

    monkeypatch.setattr(Reloading, "begin", read_for_long)
    second.tick()
    nominal = [run.nominal_at for run in ledger.history("job", 99)]
    assert any(at <= looked_at[0] and at > until - timedelta(seconds=1) for at in nominal)
    second.close()
    app.close()


def test_beat_leads_and_emits_while_many_jobs_are_written(
    ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, files = tmp_path / "may-write", tmp_path / "schedules"

    def load_slowly(*args: Any, **keys: Any) -> Changes:
        wait_until(may_write.exists)
        return load(*args, **keys)

    files.mkdir()
    (files / "jobs.yaml").write_text(EACH_SECOND % "")
    app = supervise(Celery("slow", broker=redis_url), schedules=files)
    first, second = (SupervisedScheduler(app, lazy=True) for _ in range(2))
    wait_until(lambda: (first.tick(), ledger.scheduled())[1])
    monkeypatch.setattr(reload, "load", load_slowly)
    (files / "more.yaml").write_text("jobs: {more: {task: t, every: 1h}}")
    before = len(ledger.history("job", 99))
    wait_until(lambda: (first.tick(), len(ledger.history("job", 99)) > before + 3)[1])
    second.tick()
    assert ledger.beat().leader == first._leader.instance
    assert [beat._leads for beat in (first, second)] == [True, False]
    assert "more" not in ledger.scheduled()
    may_write.touch()
    wait_until(lambda: (first.tick(), "more" in ledger.scheduled())[1])
    for beat in (first, second):
        beat.close()
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
    monkeypatch.setattr(services, "find_spec", lambda name: None)  # as where Apprise is missing
    job = {"task": "t", "every": "1h", "notify": [url]}
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": {"a": job, "b": job}}))
    app = supervise(Celery("unsent", broker=redis_url), schedules=tmp_path)
    beat = SupervisedScheduler(app, lazy=True)

    try:
        with capture_logs() as logged:
            wait_until(lambda: (beat.tick(), has_started(ledger))[1])
    finally:
        beat.close()
        app.close()
    found = [event for event in logged if event["event"] == "notices not sent"]
    assert [event["reason"] for event in found] == [services.MISSING] * sentences


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(["-zadd"], id="emit"),  # it writes no time at which a job is due
        # It emits, and cannot say that it is there: its key begins with `supervisor:presence:`.
        pytest.param(["resetkeys", "~[^s]*", "~supervisor:[^p]*"], id="deliver"),
    ],
)
def test_a_leader_that_cannot_emit_or_deliver_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: list[str]
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
        wait_until(lambda: (first.tick(), ledger.history("job", 99))[1])
        ledger.client.execute_command(*user, *refused)
        before = ledger.beat().last_tick_at
        assert before
        wait_until(lambda: (first.tick(), second.tick(), second._leads)[2])
        runs = len(ledger.history("job", 99))
        wait_until(lambda: (second.tick(), len(ledger.history("job", 99)) > runs)[1])
        wait_until(lambda: (second.tick(), (ledger.beat().last_tick_at or before) > before)[1])
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
        entry.reschedule(MIDNIGHT)
        beat = SupervisedScheduler(app, lazy=True)
        own = beat._leader
        other = ledger.leader(own.leadership.key, own._schedule)
        other.poll()  # the server knows the function
        other.resign()
        way.freeze_after = own.leadership.token.encode()
        tick = Thread(target=beat.tick, daemon=True)
        tick.start()
        wait_until(lambda: not way.carries.is_set())
        wait_until(lambda: other.poll().leads)
        way.thaw()
        tick.join(scaled(10))
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
    ticked = [first + 2 * number * ABSENCE for number in range(ABSENCES_KEPT + 3)]
    for at in (first, *ticked):
        assert beat.poll(at).leads
    spans = [(start, end) for start, end in pairwise(ticked)]
    found = [(ms_of(start), ms_of(end)) for start, end in absences(ledger)]
    newest = spans[-ABSENCES_KEPT:]
    assert found == [(ms_of(start), ms_of(end)) for start, end in reversed(newest)]


# Jobs with `run_at_start`: one run when the service starts, and none when a beat is relieved


JOBS = """
jobs:
  warm: {task: t, run_at_start: true}
  nightly: {task: t, at: [2099-01-01T00:00:00], run_at_start: true}
  held: {task: t, run_at_start: true, paused: true}
  plain: {task: t, at: [2099-01-01T00:00:00]}
"""

Beats = Callable[[], SupervisedScheduler]


@pytest.fixture
def beats(redis_url: str, tmp_path: Path) -> Iterator[Beats]:
    (tmp_path / "jobs.yaml").write_text(JOBS)
    app, made = supervise(Celery("starts", broker=redis_url), schedules=tmp_path), []

    def beat() -> SupervisedScheduler:
        made.append(SupervisedScheduler(app, lazy=True))
        return made[-1]

    yield beat
    for each in made:
        each.close()
    app.close()


def has_started(ledger: Ledger) -> bool:
    """Whether no start is under way."""
    return ledger.client.hget(ledger.keys.beat, "starting") is None


def until_started(beat: SupervisedScheduler, ledger: Ledger) -> None:
    """Turns of a beat until its files are loaded and a start, if there is one, is over."""

    def turn() -> bool:
        beat.tick()
        assert beat._steps.reloading
        return beat._steps.reloading.has_read_files and has_started(ledger)

    wait_until(turn)
    beat.tick()


def runs_of(ledger: Ledger) -> dict[str, list[Run]]:
    return {name: ledger.history(name) for name in ledger.scheduled() if ledger.history(name)}


def ago(ledger: Ledger, time: timedelta) -> None:
    """As if the last turn of a beat were that long ago."""
    beat_says(ledger, last_tick=ms_of(ledger.now() - time))


def test_a_job_runs_once_when_the_service_starts_with_its_files(
    beats: Beats, ledger: Ledger
) -> None:
    beat = beats()
    until_started(beat, ledger)
    found = runs_of(ledger)
    assert found.keys() == {"warm", "nightly"}
    for name, [run] in found.items():
        assert run.id == start_id(name, run.nominal_at)
        assert run.sends == 1
        assert ledger.job(name).counters["triggered"] == 1
    beat.tick()
    assert runs_of(ledger) == found


def test_a_run_at_start_comes_again_only_after_a_time_without_beats(
    beats: Beats, ledger: Ledger
) -> None:
    first, second, third = beats(), beats(), beats()
    until_started(first, ledger)
    first.close()
    until_started(second, ledger)
    assert len(ledger.history("warm")) == 1
    second.close()
    ago(ledger, ABSENCE + timedelta(seconds=1))
    until_started(third, ledger)
    assert len(ledger.history("warm")) == 2
    # The job's lock is held by the run before, which no worker took.
    assert ledger.history("warm")[0].blocked_by == ledger.history("warm")[1].id


def test_a_standby_that_takes_over_late_starts_nothing(beats: Beats, ledger: Ledger) -> None:
    first, second = beats(), beats()
    until_started(first, ledger)
    second.tick()
    first.close()
    ago(ledger, 2 * ABSENCE)
    until_started(second, ledger)
    assert len(ledger.history("warm")) == 1


def test_a_start_that_a_beat_did_not_finish_is_finished_by_the_next(
    beats: Beats, ledger: Ledger
) -> None:
    first = beats()
    until_started(first, ledger)
    first.close()
    ago(ledger, 2 * ABSENCE)
    before, [run, *_] = ServiceStarts(ledger), ledger.history("nightly")
    ledger.cancel(run.id, "so that it is not in the way")
    before.begin(ledger.now(), is_first=True)
    for starts in (
        ServiceStarts(ledger),
        ServiceStarts(ledger),
    ):  # one dies after it gave the jobs their runs
        starts.begin(ledger.now(), is_first=False)
        assert starts.at == before.at
        starts.finish()
        beat_says(ledger, starting=ms_of(before.at or MIDNIGHT))
    assert before.at
    assert [run.id for run in ledger.history("nightly")][:-1] == [start_id("nightly", before.at)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"every": "1h", "jitter": "5m"}, True),
        ({}, True),
        ({"every": "1h", "end_at": "2026-01-01T00:00:00"}, False),
        ({"every": "1h", "start_at": "2099-01-01T00:00:00"}, False),
        ({"cron": "0 9 * * *", "exclude": [f"{MIDNIGHT:%a}"]}, False),
        ({"cron": "0 9 * * *", "dst": {"fold": "both"}, "exclude": ["2026-01-01"]}, True),
    ],
    ids=str,
)
def test_the_bounds_of_a_job_hold_for_this_run_too(keys: dict[str, Any], expected: bool) -> None:
    spec = JobSpec.model_validate({"name": "a", "task": "t", "run_at_start": True, **keys})
    assert may_run(spec, MIDNIGHT) is expected


def test_why_names_the_run_at_start(beats: Beats, ledger: Ledger) -> None:
    until_started(beats(), ledger)
    [sentence, *_, last] = why.answer(question_of_job(ledger, "warm"))
    assert sentence.startswith("the run at start of ")
    assert last.endswith("it runs at start, and when code or a person asks for it")
    assert ledger.spec("warm").schedule == "at start"
    assert ledger.spec("nightly").schedule == "at 2099-01-01T00:00:00, at start"


# A ledger is one app's: a beat of another by mistake changes nothing in it, and says so


class Team:
    """An app with one job, named like itself."""

    def __init__(
        self, url: str, directory: Path, name: str, owner: str | None = None, **settings: Any
    ) -> None:
        self.files = directory / name
        self.files.mkdir(exist_ok=True)
        (self.files / "jobs.yaml").write_text(f"jobs: {{{name}: {{task: t, every: 1h}}}}\n")
        broker = {"broker": url, "set_as_current": False}
        self.app = supervise(Celery(name, **broker, **settings), schedules=self.files, owner=owner)

    @contextmanager
    def beat(self) -> Iterator[SupervisedScheduler]:
        beat = SupervisedScheduler(self.app, lazy=True)
        try:
            yield beat
        finally:
            beat.close()
            self.app.close()


@pytest.fixture
def shop(redis_url: str, tmp_path: Path, ledger: Ledger) -> Team:
    """Its beat has led, loaded its job, and is gone."""
    team = Team(redis_url, tmp_path, "shop")
    with team.beat() as beat:
        wait_until(lambda: beat.tick() >= 0 and ledger.scheduled_names() == ["shop"])
    return team


def test_a_beat_of_another_app_changes_nothing_and_names_both(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    before = digests(ledger.client)
    with Team(redis_url, tmp_path, "billing").beat() as beat:
        with pytest.raises(ForeignLedger, match="'shop', and this is 'billing'") as refused:
            beat.tick()
        assert "apply --take-over" in str(refused.value)
    after = digests(ledger.client)
    assert before.keys() == after.keys()
    assert {key for key in before if before[key] != after[key]} == {ledger.keys.beat}
    [finding] = owner(read(ledger))
    assert "billing (" in finding.what


def test_two_deployments_that_differ_by_global_keyprefix_are_two_apps(
    redis_url: str, tmp_path: Path
) -> None:
    a, b = (
        Team(redis_url, tmp_path, "shop", broker_transport_options={"global_keyprefix": prefix})
        for prefix in ("A_", "B_")
    )
    with a.beat() as leader, b.beat() as other:
        leader.tick()
        with pytest.raises(ForeignLedger, match="'A_shop', and this is 'B_shop': give one of them"):
            other.tick()


def test_a_standby_of_another_app_is_refused_while_the_owner_leads(
    shop: Team, redis_url: str, tmp_path: Path
) -> None:
    with shop.beat() as leader, Team(redis_url, tmp_path, "billing").beat() as other:
        leader.tick()
        with pytest.raises(ForeignLedger):
            other.tick()


def test_a_ledger_without_an_owner_is_that_of_the_first_beat(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    """As `up` leaves it on a server of its own."""
    ledger.forget_owner()
    with shop.beat() as beat:
        beat.tick()
    assert ledger.beat().app == "shop"


def test_the_same_owner_leads_under_another_name_of_the_app(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    renamed = Team(redis_url, tmp_path, "boutique", owner="shop")
    assert owner_of(renamed.app) == "shop"
    with renamed.beat() as beat:
        wait_until(lambda: beat.tick() >= 0 and ledger.scheduled_names() == ["boutique"])


def test_apply_takes_a_ledger_over_on_purpose_alone(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "boutique_app.py").write_text(
        "from celery import Celery\n"
        "from supervisor.app import supervise\n"
        f"app = supervise(Celery('boutique', broker={redis_url!r}, set_as_current=False))\n"
        "@app.task(name='t', shared=False)\ndef t(): ...\n"
    )
    files = tmp_path / "boutique"
    files.mkdir()
    (files / "jobs.yaml").write_text("jobs: {boutique: {task: t, every: 1h}}\n")

    def apply(*words: str) -> str:
        done = CliRunner().invoke(
            main, ["-A", "boutique_app", "apply", str(files), "--yes", *words]
        )
        return f"{done.exit_code} {done.output}"

    refused = apply()
    assert refused.startswith("4 ")
    assert "'shop', and this is 'boutique'" in refused
    assert ledger.scheduled_names() == ["shop"]
    with shop.beat() as old:
        old.tick()
        assert apply("--take-over").startswith("0 ")
        assert ledger.scheduled_names() == ["boutique"]
        with pytest.raises(ForeignLedger, match="'boutique', and this is 'shop'"):
            old.tick()
    assert ledger.scheduled_names() == ["boutique"]
    assert apply("--take-over").startswith("0 ")


def test_without_redbeats_lock_a_beat_has_one_all_the_same(redis_url: str, ledger: Ledger) -> None:
    """Stock RedBeat is told so where there is one beat; here it is what leading is."""
    app = supervise(Celery("alone", broker=redis_url, redbeat_lock_key=None, set_as_current=False))
    beat = SupervisedScheduler(app, lazy=True)
    wait_until(lambda: (beat.tick(), beat._leads)[1])
    assert ledger.client.get("redbeat::lock")
    beat.close()
    app.close()
