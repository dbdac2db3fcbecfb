"""The clock of Redis is set back, or leaps and comes back: work goes on, and it is reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.audit.step import audit, compare_records
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Ending, Grant, LeaseState
from supervisor.ledger.ledger import Ledger
from supervisor.operate.deployment import read
from supervisor.operate.doctor import clocks
from supervisor.settings import Settings
from supervisor.testing import empty
from supervisor.times import ms_of
from tests.damage import lose
from tests.jobs import renew
from tests.programs import needed
from tests.waiting import scaled, wait_until

HOUR, DAY = 3_600, 86_400


class Clock:
    """The clock of a server, `set` some seconds off the true one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._write(0)

    def set(self, seconds: int) -> None:
        self._write(seconds)
        client = Redis.from_url((self._file.parent / "url").read_text())
        wait_until(lambda: abs(client.time()[0] - time.time() - seconds) < HOUR / 2)
        client.close()

    def _write(self, seconds: int) -> None:
        """In one step: the server reads it at any moment."""
        whole = self._file.with_suffix(".new")
        whole.write_text(f"{seconds:+d}\n")
        whole.replace(self._file)


@pytest.fixture(scope="module")
def faked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, Clock]]:
    needed("faketime")
    [library, *_] = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    directory = tmp_path_factory.mktemp("faked")
    clock = Clock(directory / "clock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(directory / "clock"))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        server = EmbeddedServer(directory / "valkey")
        server.start()
    (directory / "url").write_text(server.url)
    yield server, clock
    server.stop()


@pytest.fixture
def clock(faked: tuple[EmbeddedServer, Clock]) -> Clock:
    server, clock = faked
    clock.set(0)
    empty(Ledger.open(Settings(redis_url=server.url)))
    return clock


@pytest.fixture
def app(faked: tuple[EmbeddedServer, Clock], clock: Clock, tmp_path: Path) -> Iterator[Celery]:
    (tmp_path / "jobs.yaml").write_text(
        "jobs:\n"
        "  often: {task: t, every: 1s, lease_ttl: 1s, overlap: allow, history: 1000}\n"
        "  called: {task: t, cron: 0 0 1 1 *, lease_ttl: 1s, overlap: queue_all}\n"
        "  alone: {task: t, cron: 0 0 1 1 *, lease_ttl: 2s, serial: true}\n"
    )
    app = supervise(Celery("steps", broker=faked[0].url), schedules=tmp_path)
    yield app
    app.close()


@pytest.fixture
def beat(app: Celery) -> Iterator[SupervisedScheduler]:
    beat = SupervisedScheduler(app, lazy=True)
    beat.tick()
    yield beat
    beat.close()


@pytest.fixture
def ledger(faked: tuple[EmbeddedServer, Clock], clock: Clock) -> Iterator[Ledger]:
    opened = Ledger.open(Settings(redis_url=faked[0].url))
    yield opened
    opened.client.close()


def called(ledger: Ledger, beat: SupervisedScheduler) -> JobSpec:
    wait_until(lambda: beat.tick() >= 0 and "called" in ledger.scheduled_names())
    return ledger.spec("called")


def begins(ledger: Ledger, run: str, token: str) -> bool:
    return isinstance(ledger.begin(run, token, "worker"), Grant)


@pytest.mark.parametrize("seconds", [-5, -HOUR, -DAY])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_what_is_called_begins_within_a_leases_time_of_a_set_back(
    ledger: Ledger, beat: SupervisedScheduler, clock: Clock, seconds: int, is_fresh: bool
) -> None:
    spec = called(ledger, beat)
    if is_fresh:
        lose(ledger, ledger.keys.server)  # as if nothing had ever asked
    else:
        beat.tick()
    clock.set(seconds)
    run = ledger.trigger(spec).id
    began = ledger.now()
    wait_until(lambda: begins(ledger, run, "token"))
    # A lease's time of a second, where the clock would need an hour or a day.
    assert ledger.now() - began < timedelta(seconds=scaled(5))


def test_ticks_go_on_after_a_leap_of_a_day_and_back(
    ledger: Ledger, beat: SupervisedScheduler, clock: Clock
) -> None:
    wait_until(lambda: beat.tick() >= 0 and ledger.history("often"))
    tomorrow = ms_of(ledger.now()) + DAY * 1000
    clock.set(DAY)
    wait_until(lambda: beat.tick() >= 0 and newest(ledger) > tomorrow)
    list(audit(ledger, [ledger.spec("often")], ledger.now()))
    clock.set(0)
    now = ms_of(ledger.now())
    wait_until(lambda: beat.tick() >= 0 and ran_since(ledger, now) >= 3)
    counters = ledger.job("often").counters
    assert list(audit(ledger, [ledger.spec("often")], ledger.now())) == []
    assert ledger.job("often").unaccounted_ticks == 0
    assert counters["ticks"] >= 3


def newest(ledger: Ledger) -> int:
    return max(ms_of(run.nominal_at) for run in ledger.history("often", 1000))


def ran_since(ledger: Ledger, ms: int) -> int:
    """Runs, of any state but missed, of ticks of the minute after."""
    runs = ledger.history("often", 1000)
    in_time = [run for run in runs if ms < ms_of(run.nominal_at) < ms + 60_000]
    return sum(run.state is RunState.QUEUED for run in in_time)


def test_ticks_that_have_run_do_not_run_again_when_their_time_does(
    ledger: Ledger, beat: SupervisedScheduler, clock: Clock
) -> None:
    wait_until(lambda: beat.tick() >= 0 and len(ledger.history("often", 1000)) >= 3)
    runs = {run.id: run.queued_at for run in ledger.history("often", 1000)}
    clock.set(-3)
    ended = ms_of(max(run.nominal_at for run in ledger.history("often", 1000)))
    wait_until(lambda: beat.tick() >= 0 and newest(ledger) > ended)
    again = {run.id: run.queued_at for run in ledger.history("often", 1000)}
    assert {run: again[run] for run in runs} == runs
    record = ledger.job("often")
    assert record.counters["duplicates"] >= 1
    # Nominal times before the first have come as well, and each has its own outcome.
    assert record.unaccounted_ticks == 0


def test_ticks_have_one_outcome_once_a_set_back_is_corrected(
    ledger: Ledger, clock: Clock, request: pytest.FixtureRequest
) -> None:
    clock.set(-60)  # before the job is loaded: it has no earlier ticks
    beat: SupervisedScheduler = request.getfixturevalue("beat")
    wait_until(lambda: beat.tick() >= 0 and "often" in ledger.scheduled_names())
    before = ms_of(ledger.now())
    wait_until(lambda: beat.tick() >= 0 and ran_since(ledger, before) >= 3)
    clock.set(0)
    now = ms_of(ledger.now())
    wait_until(lambda: beat.tick() >= 0 and ran_since(ledger, now) >= 1)
    counted = ledger.job("often").counters["ticks"]
    clock.set(-120)
    wait_until(lambda: beat.tick() >= 0 and ledger.beat().clock_set_backs == 1)
    beat.tick()
    clock.set(0)
    corrected = ms_of(ledger.now())
    wait_until(lambda: beat.tick() >= 0 and ran_since(ledger, corrected) >= 2)
    rows = ledger.history("often", 1000)
    spans = [(run.first_nominal_at or run.nominal_at, run.nominal_at) for run in rows]
    twice = [at for at, _ in spans if sum(first <= at <= last for first, last in spans) > 1]
    assert twice == []
    spec = ledger.spec("often")
    assert compare_records(ledger, spec, rows[-1].nominal_at, ledger.now()).doubled == ()
    newest_at = max(last for _, last in spans)
    oldest_at = min(first for first, _ in spans)
    assert ledger.job("often").counters["ticks"] == (newest_at - oldest_at).total_seconds() + 1
    assert ledger.job("often").counters["ticks"] > counted
    assert list(audit(ledger, [spec], ledger.now())) == []
    assert ledger.job("often").unaccounted_ticks == 0


def test_a_run_at_work_goes_on_and_begins_no_second_time(
    ledger: Ledger, beat: SupervisedScheduler, clock: Clock
) -> None:
    called(ledger, beat)
    spec = ledger.spec("alone")
    run = ledger.trigger(spec).id
    wait_until(lambda: begins(ledger, run, "token"))
    clock.set(-HOUR)
    beat.tick()
    assert renew(ledger, run) is LeaseState.RENEWED
    assert not begins(ledger, run, "another")
    for lock in (spec.lock, spec.serial_lock):
        assert ledger.client.pttl(ledger.keys.lock(lock)) <= 2_000, "as its last renewal says"
    assert ledger.finish(run, "token", RunState.SUCCEEDED).ending is Ending.ENDED


def test_a_standby_leads_in_time_where_the_leader_dies_with_a_set_back(
    app: Celery, ledger: Ledger, beat: SupervisedScheduler, clock: Clock
) -> None:
    clock.set(-DAY)
    standby = SupervisedScheduler(app, lazy=True)
    standby.tick()
    lock = standby._leader.leadership.key
    assert 0 < ledger.client.pttl(lock) <= 12_000
    standby.close()


def test_who_leads_next_goes_on_after_a_set_back_that_a_leader_only_saw(
    app: Celery, ledger: Ledger, beat: SupervisedScheduler, clock: Clock
) -> None:
    """It dies in between, or cannot reach Redis for what comes next."""
    wait_until(lambda: beat.tick() >= 0 and ledger.history("often"))
    clock.set(-HOUR)
    assert beat._leader.poll().set_back > timedelta()
    beat.close()
    now, standby = ms_of(ledger.now()), SupervisedScheduler(app, lazy=True)
    wait_until(lambda: standby.tick() >= 0 and ran_since(ledger, now) >= 3)
    assert not standby._leader.poll().set_back, "once"
    assert ledger.beat().clock_set_backs == 1
    standby.close()


def test_a_set_back_is_counted_and_reported(
    ledger: Ledger, beat: SupervisedScheduler, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    called(ledger, beat)
    assert ledger.beat().clock_set_backs == 0
    clock.set(-HOUR)
    beat.tick()
    beat.tick()
    found = ledger.beat()
    assert found.clock_set_backs == 1
    assert abs(found.clock_set_back - timedelta(hours=1)) < timedelta(seconds=30)
    found_wrong = [finding.what for finding in clocks(read(ledger))]
    assert any("the clock of Redis was set back by" in what for what in found_wrong)
    assert "server clock set back" in caplog.text
