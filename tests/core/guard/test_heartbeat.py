"""The heartbeat of a worker's main process, over real children and a real ledger."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from supervisor.guard import lease as lease_module
from supervisor.guard.attempt import Attempt
from supervisor.guard.child_table import ChildTable
from supervisor.guard.guard import Guard
from supervisor.guard.heartbeat import Expected, Heartbeat
from supervisor.guard.interrupts import is_alive as is_process_alive
from supervisor.guard.lease import SURELY_OVER_SECONDS, Lease, State
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import LeaseState, Refusal, Work
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.store.connection import connect_for_heartbeat
from supervisor.store.keys import Keys
from supervisor.testing import empty, lease_runs_out
from supervisor.times import clock, to_ms
from tests.core.ledger.test_rescue import lost
from tests.damage import spoil, tear
from tests.jobs import (
    admitted,
    begin,
    begun,
    delivery,
    granted_of,
    job,
    lock_is_free,
    run_id,
    ticks,
    try_often,
)
from tests.logged import capture_logs
from tests.processes import is_alive
from tests.proxy import proxy_to
from tests.waiting import let_pass, scaled, status_of, wait_until

Child = subprocess.Popen[bytes]
Deaf = subprocess.Popen[str]
Publish = Callable[[Sequence[str]], None]


#: Of children of which nothing is known, and which count as running therefore.
UNKNOWN = ChildTable(is_shared=False)


@contextmanager
def asleep() -> Iterator[Child]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def child() -> Iterator[Child]:
    with asleep() as process:
        yield process


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


@contextmanager
def beating(ledger: Ledger) -> Iterator[Heartbeat]:
    thread = Heartbeat(ledger, UNKNOWN)
    thread.start()
    yield thread
    thread.stop()
    thread.join(scaled(5))


@pytest.fixture
def heartbeat(ledger: Ledger) -> Iterator[Heartbeat]:
    with beating(ledger) as thread:
        yield thread


def held(
    spec: JobSpec,
    pid: int,
    second: int = 0,
    *,
    active: bool = True,
    table: ChildTable = UNKNOWN,
) -> Lease:
    [tick] = ticks(spec, second)
    work = Work(tick.run_id, spec.name, tick.nominal_at, spec.rules(), "worker")
    return Lease(work, "token", pid, lambda: active, table)


def test_a_dead_child_gives_its_lock_to_the_next_run_at_once(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    spec = begun(ledger, on_crash="fail", overlap="queue_one")
    ledger.admit(ticks(spec, 1))
    reason = f"worker process {child.pid} died"
    heartbeat.watch(held(spec, child.pid))
    with capture_logs() as logged:
        child.kill()
        wait_until(lambda: run_id(spec, 1) in ledger.client.zrange(ledger.keys.outbox, 0, -1))
        wait_until(lambda: [line for line in logged if line.get("reason") == reason])
    assert ledger.run(run_id(spec, 0)).reason == reason
    [line] = [line for line in logged if line.get("reason") == reason]
    assert "outcome" not in line


@pytest.mark.parametrize("ending", [None, RunState.TIMED_OUT], ids=str)
def test_a_child_that_died_before_it_began_is_named_by_its_run(
    ledger: Ledger, heartbeat: Heartbeat, child: Child, ending: RunState | None
) -> None:
    spec = admitted(ledger, 0)
    heartbeat.watch(held(spec, child.pid))
    if ending:
        heartbeat.note_ending("token", ending)
    child.kill()
    wait_until(lambda: ledger.run(run_id(spec, 0)).obstacle)
    run = ledger.run(run_id(spec, 0))
    assert run.obstacle and run.obstacle.text == f"worker process {child.pid} died"
    assert run.state is RunState.QUEUED


def test_of_a_child_that_died_after_its_report_nothing_is_logged(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    """As one that ends after each task (worker_max_tasks_per_child), and whose run is retried."""
    spec = begun(ledger)
    lease = held(spec, child.pid)
    heartbeat.watch(lease)
    ledger.retry(run_id(spec, 0), "token", timedelta(minutes=1), "ValueError: no")
    with capture_logs() as logged:
        child.kill()
        wait_until(lambda: lease.state is State.DEAD and not heartbeat._leases)
    assert [line["event"] for line in logged] == []


def test_a_delivery_that_its_child_has_not_begun_is_not_watched(
    ledger: Ledger, child: Child
) -> None:
    spec, heartbeat = admitted(ledger, 0), Heartbeat(ledger, ChildTable())
    expected = Expected(lambda: child.pid, lambda pid, _: held(spec, pid), renewal_seconds=1)
    heartbeat.expect("token", expected)
    heartbeat._renewal_round()
    assert not heartbeat._leases


def test_what_has_not_begun_is_trusted_as_long_as_the_ledger_answers(
    ledger: Ledger, child: Child
) -> None:
    lease = held(admitted(ledger, 0, lease_ttl="30s"), child.pid)
    heartbeat = Heartbeat(ledger, UNKNOWN)
    heartbeat.watch(lease)
    lease.trust_from(clock() - 60)
    heartbeat._renewal_round()
    assert (lease.state, lease.trusted_until > clock()) == (State.REQUESTED, True)


def test_a_process_that_is_no_child_is_alive_as_long_as_it_runs(dead_pid: int) -> None:
    assert [is_process_alive(pid) for pid in (os.getpid(), dead_pid)] == [True, False]


def test_an_overlap_is_measured_though_no_renewal_had_told_of_the_begin(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    spec = lost(ledger, on_crash="fail", on_lease_lost="continue", lease_ttl="1s")
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    begin(ledger, run_id(spec, 1), "successor")
    heartbeat.watch(held(spec, child.pid))
    wait_until(lambda: ledger.job(spec.name).counters.get("overlaps") == 1)
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(spec, 1)


def test_a_child_that_died_while_a_call_hung_overlaps_with_nothing(
    ledger: Ledger, child: Child
) -> None:
    """It is a zombie until the worker's own loop goes on, which may hang as well."""
    spec = lost(ledger, on_crash="fail")
    heartbeat = Heartbeat(ledger, UNKNOWN)
    heartbeat.watch(held(spec, child.pid))
    heartbeat._wait()  # it has the child's descriptor, and then is at a call
    child.kill()
    wait_until(lambda: not is_alive(child.pid))
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    begin(ledger, run_id(spec, 1), "successor")
    heartbeat._renewal_round()
    assert "overlaps" not in ledger.job(spec.name).counters
    assert not heartbeat._leases


def killed_for_its_lease(heartbeat: Heartbeat, lease: Lease) -> None:
    lease.state, lease.kill_at = State.LOST, clock() - 1
    heartbeat._enforce()


def killed_by_celery(heartbeat: Heartbeat, lease: Lease) -> None:
    heartbeat.note_ending(lease.token, RunState.TIMED_OUT)
    os.kill(lease.pid, signal.SIGKILL)


def killed_by_another_process(heartbeat: Heartbeat, lease: Lease) -> None:
    heartbeat._renew()  # the ledger refuses it
    os.kill(lease.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "kill", [killed_for_its_lease, killed_by_celery, killed_by_another_process]
)
def test_a_child_that_is_killed_was_at_work_until_then(
    ledger: Ledger,
    child: Child,
    kill: Callable[[Heartbeat, Lease], None],
) -> None:
    """As by a worker that wakes up from a freeze, before it has asked for its leases."""
    spec = lost(ledger, on_crash="fail")
    heartbeat, lease = Heartbeat(ledger, UNKNOWN), held(spec, child.pid)
    lease.state = State.HELD
    heartbeat.watch(lease)
    heartbeat._wait()
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    begin(ledger, run_id(spec, 1), "successor")
    let_pass(0.02)
    with without_memory(ledger):
        kill(heartbeat, lease)
    with capture_logs() as logged:
        wait_until(lambda: heartbeat._wait() or not heartbeat._leases)
    counters = ledger.job(spec.name).counters
    assert (counters["overlaps"], counters["overlap_ms"] >= 20) == (1, True)
    assert ledger.run(run_id(spec, 0)).overlapped_with == run_id(spec, 1)
    assert [line["event"] for line in logged] == ["runs overlapped"]


def test_a_zombie_is_at_work_no_more_when_it_is_killed(ledger: Ledger, child: Child) -> None:
    """Its worker was frozen when the child died, and another run has begun since."""
    spec = lost(ledger, on_crash="fail")
    heartbeat, lease = Heartbeat(ledger, UNKNOWN), held(spec, child.pid)
    heartbeat.watch(lease)
    child.kill()
    wait_until(lambda: not is_alive(child.pid))
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    begin(ledger, run_id(spec, 1), "successor")
    let_pass(0.02)
    killed_for_its_lease(heartbeat, lease)
    heartbeat.note_ending("token", RunState.TIMED_OUT)
    wait_until(lambda: heartbeat._wait() or not heartbeat._leases)
    assert "overlaps" not in ledger.job(spec.name).counters


@pytest.mark.parametrize("is_refused", [False, True], ids=["noted", "refused"])
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(RunState.TIMED_OUT, "hard time limit"), (RunState.CANCELLED, "revoked")],
)
def test_what_a_child_was_killed_for_is_what_it_is_reported_for(
    ledger: Ledger,
    heartbeat: Heartbeat,
    child: Child,
    outcome: RunState,
    reason: str,
    is_refused: bool,
) -> None:
    spec = begun(ledger)
    heartbeat.watch(held(spec, child.pid))
    with without_memory(ledger) if is_refused else nullcontext():
        heartbeat.note_ending("token", outcome)
        child.kill()
    wait_until(lambda: ledger.run(run_id(spec, 0)).state is outcome)
    assert ledger.run(run_id(spec, 0)).reason == reason


def test_a_run_that_was_given_up_ends_by_the_limit_that_its_child_was_killed_for(
    ledger: Ledger, child: Child
) -> None:
    """By a worker that wakes up from a freeze, before another attempt has begun."""
    spec = lost(ledger)
    heartbeat = Heartbeat(ledger, UNKNOWN)
    heartbeat.watch(held(spec, child.pid))
    ledger.rescue()
    heartbeat.note_ending("token", RunState.TIMED_OUT)
    child.kill()
    wait_until(lambda: heartbeat._wait() or not heartbeat._leases)
    assert ledger.run(run_id(spec, 0)).state is RunState.TIMED_OUT


def test_however_many_runs_a_child_works_for_it_costs_one_descriptor(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    spec = job(ledger)
    heartbeat.watch(held(spec, child.pid))
    descriptors = Path(f"/proc/{os.getpid()}/fd")
    before = len(list(descriptors.iterdir()))
    for second in range(1, 200):
        heartbeat.watch(held(spec, child.pid, second))
    assert len(list(descriptors.iterdir())) <= before + 2


def test_a_run_whose_end_the_ledger_forgot_is_not_kept_at_work_for_ever(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    spec = begun(ledger, lease_ttl="1s")
    heartbeat.watch(held(spec, child.pid, active=False))
    wait_until(lambda: lock_is_free(ledger, spec), SURELY_OVER_SECONDS + 10)
    [rescued] = ledger.rescue()
    assert (rescued.kind, rescued.run_id) == ("rescued", run_id(spec, 0))


def test_a_run_that_has_ended_is_not_written_into_a_ledger_that_lost_it(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    spec = job(ledger, lease_ttl="4s")
    with asleep() as other:
        ended, at_work = held(spec, child.pid, active=False), held(spec, other.pid, 1)
        ended.state = at_work.state = State.HELD
        ended.granted = at_work.granted = granted_of(ledger)
        heartbeat.watch(ended)
        heartbeat.watch(at_work)
        wait_until(lambda: ledger.client.exists(ledger.keys.run(at_work.run_id)))
        assert not ledger.client.exists(ledger.keys.run(ended.run_id))


def began(ledger: Ledger, name: str, **keys: Any) -> JobSpec:
    """A job with a run at work, whose lease is a few seconds long."""
    return begun(ledger, name=name, **{"lease_ttl": "4s", **keys})


def wait_for_renewals(ledger: Ledger, spec: JobSpec) -> None:
    """Several of them: the lock is held for longer than the lease was when it was asked for."""
    lock = ledger.keys.lock(spec.lock)
    until = int(ledger.client.pexpiretime(lock)) + to_ms(spec.lease_ttl) / 2
    wait_until(lambda: int(ledger.client.pexpiretime(lock)) > until)


def test_a_run_that_cannot_be_reported_stands_in_no_others_way(
    ledger: Ledger, heartbeat: Heartbeat, child: Child, dead_pid: int
) -> None:
    broken, healthy = began(ledger, "broken"), began(ledger, "healthy")
    tear(ledger, run_id(broken, 0))
    heartbeat.watch(held(broken, dead_pid))
    heartbeat.watch(held(healthy, child.pid))
    wait_for_renewals(ledger, healthy)


def test_a_run_that_cannot_be_written_anew_stands_in_no_others_way(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    forgotten = job(ledger, "forgotten", lease_ttl="4s")
    healthy = began(ledger, "healthy", lease_ttl="4s")
    spoil(ledger, ledger.keys.lock_state(forgotten.lock))
    renewed = held(healthy, child.pid)
    with asleep() as other:
        unknown = held(forgotten, other.pid)
        unknown.state, unknown.granted = State.HELD, granted_of(ledger)
        heartbeat.watch(unknown)
        heartbeat.watch(renewed)
        # It is at work without a lease.
        assert status_of(other, 30) == -signal.SIGKILL
    assert renewed.has_begun
    assert not renewed.is_lost


@pytest.fixture
def forbidden(settings: Settings, ledger: Ledger) -> Iterator[Ledger]:
    """The ledger for a user who may not call a function."""
    ledger.client.acl_setuser(
        "nobody", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-fcall"]
    )
    url = urlsplit(settings.redis_url)
    place = f"{url.hostname}:{url.port}{url.path}"
    opened = Ledger.open(Settings(redis_url=f"redis://nobody:secret@{place}"))
    yield opened
    opened.client.close()
    ledger.client.acl_deluser("nobody")


@contextmanager
def without_memory(ledger: Ledger) -> Iterator[Ledger]:
    """Its server refuses all that would be written."""
    ledger.client.config_set("maxmemory", 1)
    try:
        yield ledger
    finally:
        ledger.client.config_set("maxmemory", 0)


@pytest.fixture
def full(ledger: Ledger) -> Iterator[Ledger]:
    with without_memory(ledger) as full:
        yield full


@pytest.mark.parametrize("refusing", ["forbidden", "full"])
def test_a_server_that_refuses_keeps_no_run_at_work_without_its_lease(
    ledger: Ledger, request: pytest.FixtureRequest, refusing: str, child: Child, dead_pid: int
) -> None:
    spec, lost = (began(ledger, name, lease_ttl="1s") for name in ("nightly", "lost"))
    with beating(request.getfixturevalue(refusing)) as heartbeat:
        heartbeat.watch(held(lost, dead_pid))
        heartbeat.watch(held(spec, child.pid))
        heartbeat.note_ending("token", RunState.TIMED_OUT)  # nor does that stop the kill
        assert status_of(child, 30) == -signal.SIGKILL


def test_a_lease_whose_end_was_reported_does_not_begin_its_run_again(ledger: Ledger) -> None:
    """Two attempts failed between two heartbeats, and the third has not begun."""
    spec = job(ledger, max_retries=5)
    run = run_id(spec, 0)
    ledger.admit(ticks(spec, 0))
    try_often(ledger, run, 2)
    first = held(spec, os.getppid(), active=False)
    first.state = State.HELD
    [renewal] = ledger.renew([(run, "attempt-0", first.phase, None)])
    assert renewal.state is LeaseState.NOT_BEGUN
    assert ledger.run(run).state is RunState.QUEUED


@pytest.mark.parametrize("refusing", ["forbidden", "full"])
def test_a_server_that_refuses_has_nothing_begun_and_nothing_failed(
    ledger: Ledger, request: pytest.FixtureRequest, refusing: str
) -> None:
    """What a task's hook raises would be a failure for Celery, of a run that is still to begin."""
    spec = admitted(ledger, 0)
    guard = Guard(request.getfixturevalue(refusing), lambda _: None, "worker")
    refused = Attempt(guard, delivery(run_id(spec, 0))).begin()
    assert refused and refused.refusal is Refusal.UNAVAILABLE
    assert ledger.run(run_id(spec, 0)).state is RunState.QUEUED


def test_a_begin_is_undone_while_its_child_works_for_the_next_run(
    ledger: Ledger, heartbeat: Heartbeat, child: Child
) -> None:
    unbegun = began(ledger, "unbegun", on_crash="fail", lease_ttl="30s")
    at_work = began(ledger, "at-work")
    heartbeat.watch(held(unbegun, child.pid))
    heartbeat.undo_begin("token", "no reply")
    heartbeat.watch(held(at_work, child.pid))
    wait_until(lambda: run_id(unbegun, 0) in ledger.client.zrange(ledger.keys.outbox, 0, -1))
    assert ledger.run(run_id(unbegun, 0)).state is RunState.QUEUED
    wait_for_renewals(ledger, at_work)


# Leases that a server does not renew in time: which are reported, killed, left alone


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    """A child that does not end when it is told to."""
    script = "trap '' USR2 URG; echo ready; exec sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@contextmanager
def at_work_under(ledger: Ledger, lease: Lease) -> Iterator[None]:
    """A renewal has said that its run has begun."""
    with beating(ledger) as heartbeat:
        heartbeat.watch(lease)
        wait_until(lambda: lease.has_begun)
        yield


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_running_child_is_killed_before_its_lease_is_gone(
    ledger: Ledger, deaf: Deaf, is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "GRACEFUL", 0.2)  # the rest is for this test to look
    spec = began(ledger, "nightly", lease_ttl="6s", stop_grace="30s")
    lease = held(spec, deaf.pid)
    with at_work_under(ledger, lease):
        if is_cancelled:
            ledger.cancel(run_id(spec, 0), "by hand")
            wait_until(lambda: lease.is_interrupted)
        with without_memory(ledger):
            assert status_of(deaf, 15) == -signal.SIGKILL
            assert not lock_is_free(ledger, spec)


def test_a_run_without_its_lease_comes_back_to_a_server_that_forgot_it(
    ledger: Ledger, deaf: Deaf
) -> None:
    spec = began(ledger, "nightly", lease_ttl="3s", on_lease_lost="continue")
    lease = held(spec, deaf.pid)
    lease.granted = granted_of(ledger)
    with at_work_under(ledger, lease):
        with without_memory(ledger):
            wait_until(lambda: lease.is_lost)
        wait_until(lambda: not lease.is_lost)
        empty(ledger)
        wait_until(lambda: ledger.client.exists(ledger.keys.run(run_id(spec, 0))))


def test_a_run_that_could_not_begin_for_long_is_not_killed_once_it_has(
    ledger: Ledger, redis_url: str, deaf: Deaf
) -> None:
    spec = admitted(ledger, 0, lease_ttl="4s")
    lease = held(spec, deaf.pid, table=ChildTable())  # in which the child says nothing yet
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
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace = timedelta(seconds=scaled(1))
    monkeypatch.setattr("supervisor.ledger.leader.GRACE", grace)
    spec = began(ledger, "nightly", on_crash="fail", lease_ttl="1s")
    leader = ledger.leader("lock", "schedule")
    leader.poll()
    wait_until(lambda: lock_is_free(ledger, spec))  # a second without a renewal, and a heartbeat
    monkeypatch.setattr("supervisor.ledger.leader.GAP", -timedelta(seconds=1))  # before each poll
    at = leader.poll().at
    assert [rescue.kind for rescue in ledger.rescue()] == ["reasserted"]
    assert ledger.run(run_id(spec, 0)).state is RunState.RUNNING
    # A beat whose ticks are slow has grace once.
    wait_until(lambda: ledger.now() - at > grace)
    lease_runs_out(ledger, run_id(spec, 0))
    leader.poll()
    assert [rescue.kind for rescue in ledger.rescue()] == ["lost"]
