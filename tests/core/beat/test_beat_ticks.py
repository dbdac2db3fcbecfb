"""A tick of beat: what it asks of the server, and what it leaves due."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery
from redbeat import RedBeatSchedulerEntry
from redis import Redis

from supervisor.app import supervise
from supervisor.beat import admission_log, watching
from supervisor.beat import emitter as emitting
from supervisor.beat import turn as turns
from supervisor.beat.admission_log import AdmissionLog
from supervisor.beat.emitter import Emitter
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.beat.turn import EachSecond, Turn
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.guard.reaper import Reaper
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import FILES
from supervisor.ledger.leader import Leader, Poll
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.loading import JobChange
from supervisor.sending.app_settings import required_settings
from supervisor.store.failures import ResponseError
from supervisor.testing import leadership_runs_out
from supervisor.times import ms_of
from tests.damage import lose, spoil, stray
from tests.jobs import admitted, begin, run_id, states
from tests.logged import capture_logs
from tests.presence import beat_says
from tests.waiting import let_pass, wait_until

REDBEAT = ("redbeat::lock", "redbeat::schedule")


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = supervise(Celery("ticking", broker=redis_url))
    yield app
    required_settings(app)  # only then it has RedBeat's client
    app.redbeat_redis.connection_pool.disconnect()  # type: ignore[attr-defined]
    app.close()


@pytest.fixture
def leader(ledger: Ledger) -> Leader:
    """It has polled, and leads."""
    found = ledger.leader(*REDBEAT)
    assert found.poll().leads
    return found


def emitter(app: Celery, ledger: Ledger, entries: Entries, leader: Leader) -> Emitter:
    return Emitter(ledger.led_by(leader.leadership), entries, AdmissionLog(), lambda spec: spec)


def emit(emitter: Emitter, now: datetime) -> Turn:
    turn = Turn(Poll(leads=True, at=now))
    emitter.do(turn)
    return turn


def test_a_tick_with_nothing_to_do_is_one_call(
    ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {yearly: {task: t, cron: 0 0 1 1 *}}\n")
    app = supervise(Celery("idle", broker=redis_url), schedules=tmp_path)
    with (
        closing(SupervisedScheduler(app, lazy=True)) as beat,
        Redis.from_url(redis_url).monitor() as monitor,  # type: ignore[no-untyped-call]
    ):

        def calls() -> list[str]:
            beat.tick()
            ledger.client.echo("done")
            seen = []
            for said in monitor.listen():
                if said["command"].startswith("ECHO"):
                    return seen
                if said["client_type"] != "lua":
                    seen.append(said["command"].split()[0])
            return seen

        # Loading, presence and the audit come first, and the latter two again in five seconds.
        wait_until(lambda: calls() == ["FCALL"])
    app.close()


def test_a_tick_that_the_ledger_sends_reads_no_outbox(
    ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {often: {task: t, every: 1s, overlap: allow}}\n")
    app = supervise(Celery("sending", broker=redis_url), schedules=tmp_path)
    with closing(SupervisedScheduler(app, lazy=True)) as beat:
        wait_until(lambda: beat.tick() >= 0 and ledger.client.exists(ledger.keys.message("often")))
        before = len(ledger.history("often"))
        with Redis.from_url(redis_url).monitor() as monitor:  # type: ignore[no-untyped-call]
            wait_until(lambda: beat.tick() >= 0 and len(ledger.history("often")) > before)
            ledger.client.echo("done")
            seen = []
            for said in monitor.listen():
                if said["command"].startswith("ECHO"):
                    break
                if said["client_type"] != "lua" and ledger.keys.outbox in said["command"]:
                    seen.append(said["command"])
    assert seen == []
    assert ledger.outbox() == []
    app.close()


def test_a_beat_whose_reaper_fails_emits_all_the_same(
    ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ResponseError("WRONGTYPE of what only a witness reads")

    monkeypatch.setattr(Ledger, "at_work_in", refused)
    (tmp_path / "jobs.yaml").write_text("jobs: {often: {task: t, every: 1s}}\n")
    app = supervise(Celery("witnessing", broker=redis_url), schedules=tmp_path)
    with closing(SupervisedScheduler(app, lazy=True)) as beat, capture_logs() as logs:
        wait_until(lambda: beat.tick() >= 0 and ledger.history("often"))
    assert "reaper failed" in [entry["event"] for entry in logs]
    app.close()


def test_what_a_relieved_beat_could_not_emit_is_due_still(
    app: Celery, ledger: Ledger, entries: Entries
) -> None:
    spec = JobSpec(name="minutely", task="t", every="1m")
    relieved, other = ledger.leader(*REDBEAT), ledger.leader(*REDBEAT)
    assert relieved.poll().leads
    start = ledger.now()
    load(ledger, entries, {spec.name: spec}, "digest", start)
    leadership_runs_out(ledger)  # while the process slept
    assert other.poll().leads
    now = start + timedelta(minutes=1)
    emitted = emit(emitter(app, ledger, entries, relieved), now)
    assert [e.spec.name for e in emitted.emissions] == [spec.name]
    assert states(ledger, spec) == []
    assert entries.due(now, 10, now)[1] == [entries.key(spec.name)]
    emit(emitter(app, ledger, entries, other), now)
    assert states(ledger, spec) == ["queued"]
    assert entries.due(now, 10, now)[1] == []


def test_a_tick_that_the_server_refuses_is_logged_when_that_changes(
    app: Celery, ledger: Ledger, entries: Entries, leader: Leader
) -> None:
    spec = JobSpec(name="broken", task="t", every="1m")
    start = ledger.now()
    load(ledger, entries, {spec.name: spec}, "digest", start)
    beat, now = emitter(app, ledger, entries, leader), start + timedelta(minutes=1)
    with capture_logs() as logs:
        for is_broken in (True, True, False, True):
            if is_broken:
                spoil(ledger, ledger.keys.open(spec.name))
            else:
                lose(ledger, ledger.keys.open(spec.name))
            emit(beat, now)
            now += timedelta(minutes=0 if is_broken else 1)
    refused = [line["job"] for line in logs if line["event"] == "tick not admitted"]
    assert refused == [spec.name] * 2


def test_a_tick_that_cannot_be_decided_is_logged_when_that_changes(
    app: Celery, ledger: Ledger, entries: Entries, leader: Leader
) -> None:
    spec = JobSpec(name="broken", task="t", every="1m")
    start = ledger.now()
    load(ledger, entries, {spec.name: spec}, "digest", start)
    faults: list[str | None] = ["no zone", "no zone", "no rule", None, "no rule"]

    def as_admitted(spec: JobSpec) -> JobSpec:
        if fault := faults.pop(0):
            raise ValueError(fault)
        return spec

    beat = Emitter(ledger.led_by(leader.leadership), entries, AdmissionLog(), as_admitted)
    with capture_logs() as logs:
        for minute in (1, 1, 1, 1, 2):
            emit(beat, start + timedelta(minutes=minute))
    failed = [line for line in logs if line["event"] == "tick not decided"]
    assert [str(line["exc_info"]) for line in failed] == ["no zone", "no rule", "no rule"]
    assert {line["job"] for line in failed} == {spec.name}
    assert states(ledger, spec) == ["queued"]


def test_a_tick_with_all_jobs_there_can_be_is_the_only_one(
    app: Celery, ledger: Ledger, entries: Entries, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = {name: JobSpec(name=name, task="t", every="1m") for name in "abcd"}
    start = ledger.now()
    load(ledger, entries, specs, "digest", start)
    beat, now = emitter(app, ledger, entries, leader), start + timedelta(minutes=1)
    monkeypatch.setattr(emitting, "ENTRIES_PER_TURN", 3)
    some, rest = emit(beat, now), emit(beat, now)
    assert [(e.has_more, len(e.emissions)) for e in (some, rest)] == [(True, 3), (False, 1)]
    monkeypatch.setattr(emitting, "ENTRIES_PER_TURN", 4)
    whole = emit(beat, now + timedelta(minutes=1))
    assert (whole.has_more, len(whole.emissions)) == (False, 4)


def test_runs_are_logged_once_nothing_more_is_due_or_beat_ends(
    app: Celery, ledger: Ledger, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ledger.now() - timedelta(hours=2)
    monkeypatch.setattr(emitting, "ENTRIES_PER_TURN", 3)
    monkeypatch.setattr(admission_log, "LINES_PER_TURN", 3)
    with capture_logs() as lines:

        def logged() -> list[str]:
            return sorted(line["job"] for line in lines if line["event"] == "run queued")

        with closing(SupervisedScheduler(app, lazy=True)) as beat:
            load(ledger, entries, jobs_named("abcd"), "digest", start)
            assert (beat.tick(), logged()) == (0, [])
            assert (beat.tick(), len(logged())) == (0, 3)
            assert beat.tick() > 0
            assert logged() == ["a", "b", "c", "d"]
            load(ledger, entries, jobs_named("abcdefgh"), "another", start)
            assert (beat.tick(), logged()) == (0, ["a", "b", "c", "d"])
        assert logged() == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_beat_that_is_always_behind_reads_edited_files(
    ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has never logged all, and still loads what may end the load."""
    (tmp_path / "jobs.yaml").write_text("jobs: {a: {task: t, every: 1s}, b: {task: t, every: 1s}}")
    app = supervise(Celery("behind", broker=redis_url), schedules=tmp_path)
    with closing(SupervisedScheduler(app, lazy=True)) as beat:
        wait_until(lambda: beat.tick() >= 0 and len(ledger.scheduled_names()) == 2)
        with monkeypatch.context() as patched:
            patched.setattr(admission_log, "LINES_PER_TURN", 0)
            wait_until(lambda: beat.tick() == 0 and len(beat._steps.log) > 1)
            (tmp_path / "jobs.yaml").write_text("jobs: {a: {task: t, every: 1s}}")
            wait_until(lambda: beat.tick() == 0 and ledger.scheduled_names() == ["a"], 20)


def test_what_waits_to_be_logged_is_bounded(
    app: Celery,
    ledger: Ledger,
    entries: Entries,
    leader: Leader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_log, "LINES_PER_TURN", 1)
    monkeypatch.setattr(admission_log, "MOST_UNLOGGED", 2)
    load(ledger, entries, jobs_named("abcdef"), "digest", ledger.now() - timedelta(hours=2))
    log = AdmissionLog()
    beat = Emitter(ledger.led_by(leader.leadership), entries, log, lambda spec: spec)
    emit(beat, ledger.now())
    assert len(log) == 2


def jobs_named(names: str) -> dict[str, JobSpec]:
    return {name: JobSpec(name=name, task="t", every="1h") for name in names}


def test_a_poll_knows_the_time_of_the_server_to_the_microsecond(
    ledger: Ledger, leader: Leader
) -> None:
    def server_time() -> datetime:
        seconds, microseconds = ledger.client.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    for _ in range(20):  # in whole milliseconds it would be late most of the time
        before, poll = server_time(), leader.poll()
        assert before <= poll.moment_in(0) <= server_time()


def test_a_poll_tells_what_there_is_to_do(ledger: Ledger) -> None:
    leader, ms = ledger.leader(*REDBEAT), ledger.now().timestamp() * 1000
    nothing = leader.poll()
    assert nothing.leads
    assert not any((nothing.to_rescue, nothing.has_due, nothing.has_outbox))
    assert not any((nothing.has_sent, nothing.has_outbound, nothing.next_due, nothing.loaded))
    for key in (ledger.keys.leases, ledger.keys.delayed, ledger.keys.pauses):
        stray(ledger, key, later=ms + 60_000)
        assert not leader.poll().to_rescue
        stray(ledger, key, now=ms)
        assert leader.poll().to_rescue
        lose(ledger, key)
    admitted(ledger, 0, 1, overlap="queue_one")
    assert leader.poll().to_rescue
    for key in (ledger.keys.outbox, ledger.keys.sent, ledger.keys.outbound):
        stray(ledger, key, run=ms)
    beat_says(ledger, config="digest")
    stray(ledger, REDBEAT[1], due=ms / 1000 - 1, next=ms / 1000 + 60, never=-1)
    poll = leader.poll()
    assert all((poll.has_outbox, poll.has_sent, poll.has_outbound, poll.has_due))
    assert poll.loaded == "digest"
    assert poll.next_due is not None
    assert poll.next_due - poll.at > timedelta(seconds=50)


@pytest.mark.parametrize("index", ["leases", "delayed", "pauses"])
def test_a_poll_tells_when_what_is_rescued_is_due_next(
    ledger: Ledger, leader: Leader, index: str
) -> None:
    now = ms_of(ledger.now())
    stray(ledger, getattr(ledger.keys, index), stays=now, first=now + 60_000)
    assert ms_of(leader.poll().next_due) == now + 60_001, (
        "a lease is held until its millisecond ends"
    )
    stray(ledger, getattr(ledger.keys, index), sooner=now + 30_000)
    stray(ledger, REDBEAT[1], entry=now / 1000 + 40)
    assert ms_of(leader.poll().next_due) == now + 30_001
    stray(ledger, REDBEAT[1], entry=now / 1000 + 20)
    assert ms_of(leader.poll().next_due) == now + 20_000


def test_what_is_rescued_wakes_beat_fifty_milliseconds_later_at_the_earliest(
    ledger: Ledger, leader: Leader
) -> None:
    now = ms_of(ledger.now())
    stray(ledger, ledger.keys.delayed, **{str(ms): now + ms for ms in range(1, 60_000, 5)})
    poll = leader.poll()
    assert poll.next_due == poll.at + timedelta(milliseconds=50)
    stray(ledger, REDBEAT[1], **{str(ms): (now + ms) / 1000 for ms in range(1, 60_000, 5)})
    poll = leader.poll()
    assert poll.next_due is not None and poll.next_due - poll.at < timedelta(milliseconds=10)


def test_retries_that_come_due_all_the_time_are_rescued_in_few_passes(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = admitted(ledger, *range(200), every="365d", overlap="allow", max_retries=1)
    runs = [run_id(spec, second) for second in range(200)]
    for run in runs:
        begin(ledger, run, run)
        ledger.retry(run, run, timedelta(hours=1), "not yet")
    passes = counted(monkeypatch, Ledger, "rescue")
    with closing(SupervisedScheduler(app)) as beat:
        beat.tick()  # the first takes longer
        now = ms_of(ledger.now())
        stray(ledger, ledger.keys.delayed, **{r: now + 5 * n for n, r in enumerate(runs)})
        while ledger.client.zcard(ledger.keys.delayed):
            time.sleep(beat.tick())  # as Celery's beat does: with another wait, passes are fewer
    assert {ledger.run(run).state for run in runs} == {RunState.QUEUED}
    assert len(passes) <= 25


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[float]:
    """When it is called from now on."""
    calls: list[float] = []
    call = getattr(owner, name)

    def noted(*args: object) -> object:
        calls.append(time.monotonic())
        return call(*args)

    monkeypatch.setattr(owner, name, noted)
    return calls


def test_files_are_looked_at_once_a_second_however_often_beat_turns(
    ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {yearly: {task: t, cron: 0 0 1 1 *}}")
    app = supervise(Celery("often", broker=redis_url), schedules=tmp_path)
    with closing(SupervisedScheduler(app, lazy=True)) as beat:
        wait_until(lambda: beat.tick() >= 0 and ledger.specs())
        looks = [counted(monkeypatch, Reaper, "reap"), counted(monkeypatch, watching, "files_of")]
        began = time.monotonic()
        for _ in range(50):
            beat.tick()
        most = (time.monotonic() - began) / 0.9 + 1
    assert all(len(calls) <= most for calls in looks)
    app.close()


def test_a_turn_that_does_not_look_is_followed_by_one_a_second_after_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = EachSecond()
    assert looks.is_due(Turn(Poll(leads=True, at=datetime.now(UTC))))
    looked_at = time.monotonic()
    monkeypatch.setattr(turns, "LEAST_SECONDS", 60)
    let_pass(0.2)
    turn = Turn(Poll(leads=True, at=datetime.now(UTC)))
    assert not looks.is_due(turn)
    left = looked_at + 1 - time.monotonic()
    assert turn.seconds_left <= left


def test_a_beat_that_stands_by_is_told_nothing_and_signs_nothing(ledger: Ledger) -> None:
    first, second = ledger.leader(*REDBEAT), ledger.leader(*REDBEAT)
    assert first.poll().leads
    assert not second.poll(last_turn_at=ledger.now()).leads
    assert ledger.beat().last_tick_at is None
    last_turn_at = ledger.now()
    first.poll(last_turn_at=last_turn_at, follows="files")
    assert ledger.beat().last_tick_at == last_turn_at
    assert first.resign()
    assert not first.resign()
    assert second.poll().leads


def test_a_broker_elsewhere_that_is_away_keeps_no_run_from_being_admitted(
    ledger: Ledger, redis_url: str
) -> None:
    for broker in ("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1"):
        app = supervise(Celery("apart", broker=broker, set_as_current=False), redis_url=redis_url)
        entries, leader = Entries(app, ledger), ledger.leader(*REDBEAT)
        spec = JobSpec(name=broker.partition(":")[0], task="t", every="1m")
        start = ledger.now()
        load(ledger, entries, {spec.name: spec}, "digest", start)
        assert leader.poll().leads
        emit(emitter(app, ledger, entries, leader), start + timedelta(minutes=1))
        assert states(ledger, spec) == ["queued"]
        leader.resign()
        app.close()


class Overtaken(Entries):
    """Somebody applies other files before beat writes when its jobs are next due."""

    def __init__(self, app: Celery, ledger: Ledger, wanted: JobSpec) -> None:
        super().__init__(app, ledger)
        own = Entries(app, ledger)
        wanted_jobs = {wanted.name: wanted}
        self._apply = lambda: load(ledger, own, wanted_jobs, "second", ledger.now())

    def reschedule(self, next_at: Mapping[str, datetime | None]) -> None:
        self._apply()
        super().reschedule(next_at)


def test_what_is_applied_while_beat_emits_is_in_force(
    app: Celery, ledger: Ledger, leader: Leader
) -> None:
    daily = JobSpec(name="job", task="t", every="1d")
    often = daily.model_copy(update={"every": timedelta(seconds=5)})
    entries = Entries(app, ledger)
    start = ledger.now()
    load(ledger, entries, {"job": daily}, "first", start)
    now = start + timedelta(days=1)
    overtaken = Overtaken(app, ledger, often)
    assert emit(emitter(app, ledger, overtaken, leader), now).has_more
    assert entries.due(now, 10, now)[1] == [entries.key("job")]


def test_a_backlog_is_dealt_with_in_passes_and_what_is_due_now_comes_first(
    app: Celery, ledger: Ledger, entries: Entries, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ledger.now()
    late = {n: JobSpec(name=n, task="t", every="1m", catchup="all") for n in "abc"}
    prompt = JobSpec(name="prompt", task="t", every="1h")
    load(ledger, entries, late, "first", start)
    now = start + timedelta(minutes=10)
    change = JobChange("prompt", prompt, definition="{}", has_new_times=True, next_at=now)
    ledger.load([change], entries.keys, FILES, at=now - timedelta(seconds=1))
    monkeypatch.setattr(emitting, "TICKS_AT_MOST", 1)
    monkeypatch.setattr(emitting, "ENTRIES_PER_PORTION", 1)
    beat = emitter(app, ledger, entries, leader)
    passes = [emit(beat, now) for _ in range(3)]
    assert [e.has_more for e in passes] == [True, True, False]
    assert [e.spec.name for done in passes for e in done.emissions] == ["prompt", "a", "b", "c"]


def test_a_job_with_more_ticks_than_a_pass_has_not_been_dealt_with(
    app: Celery, ledger: Ledger, entries: Entries, leader: Leader
) -> None:
    start = ledger.now()
    spec = JobSpec(name="job", task="t", every="1m", catchup="all", catchup_window="1d")
    load(ledger, entries, {"job": spec}, "first", start)
    beat = emitter(app, ledger, entries, leader)
    now = start + timedelta(minutes=150)
    assert [emit(beat, now).has_more for _ in range(2)] == [True, False]
    assert ledger.job("job").counters["ticks"] == 150


def test_beat_wakes_when_an_entry_of_redbeats_own_is_due(app: Celery, ledger: Ledger) -> None:
    with closing(SupervisedScheduler(app)) as beat:
        beat.tick()  # the first takes longer
        entry = RedBeatSchedulerEntry("often", "t", timedelta(seconds=1), app=app).save()
        entry.reschedule(app.now().replace(microsecond=500_000))
        due_at = entry.last_run_at.timestamp() + 1
        began_at, seconds = time.time(), beat.tick()
        while not ledger.client.llen("celery"):
            assert began_at + seconds < due_at + 0.2
            time.sleep(seconds)
            began_at, seconds = time.time(), beat.tick()


def test_a_schedulers_own_entries_are_written_once_it_leads(app: Celery, ledger: Ledger) -> None:
    class Theirs(SupervisedScheduler):
        def setup_schedule(self) -> None:
            super().setup_schedule()
            self.update_from_dict({"theirs": {"task": "t", "schedule": timedelta(hours=1)}})

    with closing(Theirs(app)) as leading, closing(Theirs(app)) as standby:
        assert not ledger.client.exists("redbeat:theirs")
        leading.tick()
        assert ledger.client.exists("redbeat:theirs")
        RedBeatSchedulerEntry.from_key("redbeat:theirs", app=app).delete()
        standby.tick()
        assert not ledger.client.exists("redbeat:theirs")
