"""Leases that a server does not renew in time: who is told, who is killed, who is let alone."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.guard import child_table
from supervisor.guard.heartbeat import Heartbeat
from supervisor.guard.lease import Lease
from supervisor.job.run import RunState
from supervisor.ledger.connection import connect_for_heartbeat
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.times import clock
from tests.ledger.jobs import admitted, begin, lock_is_free, run_id
from tests.ledger.test_heartbeat import began, held
from tests.proxy import proxy_to
from tests.waiting import patience, status_of, wait_until


@pytest.fixture
def deaf() -> Iterator[subprocess.Popen[str]]:
    """A child that does not end when it is told to."""
    script = "trap '' USR2 URG; echo ready; exec sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@contextmanager
def beating(ledger: Ledger) -> Iterator[Heartbeat]:
    heartbeat = Heartbeat(ledger, lambda _: None)
    heartbeat.start()
    yield heartbeat
    heartbeat.stop()
    heartbeat.join(patience(5))


@contextmanager
def at_work_under(ledger: Ledger, lease: Lease) -> Iterator[None]:
    """A renewal has said that its run has begun."""
    with beating(ledger) as heartbeat:
        heartbeat.watch(lease)
        wait_until(lambda: lease.has_begun)
        yield


@contextmanager
def full(ledger: Ledger) -> Iterator[None]:
    """The server has no memory left."""
    ledger.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        ledger.client.config_set("maxmemory", 0)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_running_child_is_killed_before_its_lease_is_gone(
    ledger: Ledger, deaf: subprocess.Popen[str], is_cancelled: bool
) -> None:
    spec = began(ledger, "nightly", lease_ttl="6s", stop_grace="30s")
    lease = held(spec, deaf.pid)
    with at_work_under(ledger, lease):
        if is_cancelled:
            ledger.cancel(run_id(spec, 0), "by hand")
            wait_until(lambda: lease.is_interrupted)
        with full(ledger):
            assert status_of(deaf, 15) == -signal.SIGKILL
            assert not lock_is_free(ledger, spec)


def test_a_run_without_its_lease_comes_back_to_a_server_that_forgot_it(
    ledger: Ledger, deaf: subprocess.Popen[str]
) -> None:
    spec = began(ledger, "nightly", lease_ttl="3s", on_lease_lost="continue")
    lease = held(spec, deaf.pid)
    with at_work_under(ledger, lease):
        with full(ledger):
            wait_until(lambda: lease.is_lost)
        wait_until(lambda: not lease.is_lost)
        ledger.client.flushdb()
        ledger.acknowledge_server()
        wait_until(lambda: ledger.client.exists(ledger.keys.run(run_id(spec, 0))))


def test_a_run_that_could_not_begin_for_long_is_not_killed_once_it_has(
    ledger: Ledger,
    redis_url: str,
    deaf: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_table, "_table", None)
    child_table.share()  # in which the child says nothing yet
    spec = admitted(ledger, 0, lease_ttl="4s")
    lease = held(spec, deaf.pid)
    with proxy_to(redis_url) as way:
        settings = Settings(redis_url=way.url)
        hurried = Ledger(connect_for_heartbeat(settings), Keys(settings.prefix))
        with beating(hurried) as heartbeat:
            way.freeze()
            heartbeat.watch(lease)
            wait_until(lambda: clock() > lease.trusted_until + 1)
            way.thaw()
            begin(ledger, run_id(spec, 0))
            wait_until(lambda: lease.has_begun)
            assert not (lease.is_interrupted or lease.kill_at)


def test_no_run_is_given_up_before_it_could_reach_the_server_again(
    ledger: Ledger,
) -> None:
    spec, leader = began(ledger, "nightly", on_crash="fail"), ledger.leader("lock", "schedule")
    leader.look()
    wait_until(lambda: lock_is_free(ledger, spec))  # a second without a renewal, and a heartbeat
    ledger.client.hincrby(ledger.keys.server, "looked", -4_000)
    leader.look()
    assert [rescue.kind for rescue in ledger.rescue()] == ["reasserted"]
    assert ledger.run(run_id(spec, 0)).state is RunState.RUNNING
    # A beat whose ticks are slow has mercy once.
    ledger.client.hincrby(ledger.keys.server, "mercy_until", -7_000)
    ledger.client.hincrby(ledger.keys.server, "looked", -4_000)
    ledger.client.delete(ledger.keys.lock(spec.lock))
    ledger.client.zadd(ledger.keys.leases, {run_id(spec, 0): 1})
    leader.look()
    assert [rescue.kind for rescue in ledger.rescue()] == ["lost"]
