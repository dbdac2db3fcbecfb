"""The heartbeat of a worker's main process, over real children and a real ledger."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from supervisor.heartbeat import Heartbeat
from supervisor.leases import SURELY_OVER_SECONDS, HeldLease
from supervisor.ledger.requests import Work
from supervisor.ledger.runs import Ledger
from supervisor.run import RunState
from supervisor.spec import JobSpec
from tests.ledger.jobs import begin, job, lock_is_free, run_id, ticks
from tests.waiting import wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def published() -> list[str]:
    return []


@pytest.fixture
def heartbeat(ledger: Ledger, published: list[str]) -> Iterator[Heartbeat]:
    def publish(run_ids: Sequence[str]) -> None:
        published.extend(run_ids)

    thread = Heartbeat(ledger, publish)
    thread.start()
    yield thread
    thread.stop()
    thread.join(5)


def held(spec: JobSpec, pid: int, second: int = 0, *, active: bool = True) -> HeldLease:
    [tick] = ticks(spec, second)
    work = Work(tick.run_id, spec.name, tick.nominal_at, spec.rules(), "worker")
    return HeldLease(work, "token", pid, lambda: active)


def test_a_lease_lives_as_long_as_it_is_renewed(
    ledger: Ledger, heartbeat: Heartbeat, child: subprocess.Popen[bytes]
) -> None:
    spec = job(ledger, lease_ttl="1s")
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    heartbeat.watch(held(spec, child.pid))
    until = time.monotonic() + 2.5
    wait_until(lambda: lock_is_free(ledger, spec) or time.monotonic() > until, 5)
    assert not lock_is_free(ledger, spec)
    heartbeat.stop()
    wait_until(lambda: lock_is_free(ledger, spec), 2)


def test_a_dead_child_gives_its_lock_to_the_next_run_at_once(
    ledger: Ledger, heartbeat: Heartbeat, child: subprocess.Popen[bytes], published: list[str]
) -> None:
    spec = job(ledger, on_crash="fail", overlap="queue_one")
    ledger.admit(ticks(spec, 0, 1))
    begin(ledger, run_id(spec, 0))
    heartbeat.watch(held(spec, child.pid))
    killed_at = time.monotonic()
    child.kill()
    wait_until(lambda: published, 5)
    assert time.monotonic() - killed_at < 1
    assert published == [run_id(spec, 1)]
    assert ledger.run(run_id(spec, 0)).reason == f"worker process {child.pid} died"


def test_what_was_marked_is_what_a_dead_child_is_reported_for(
    ledger: Ledger, heartbeat: Heartbeat, child: subprocess.Popen[bytes]
) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    heartbeat.watch(held(spec, child.pid))
    heartbeat.mark("token", RunState.TIMED_OUT)
    child.kill()
    wait_until(lambda: ledger.run(run_id(spec, 0)).state is RunState.TIMED_OUT, 5)


def test_however_many_runs_a_child_works_for_it_costs_one_descriptor(
    ledger: Ledger, heartbeat: Heartbeat, child: subprocess.Popen[bytes]
) -> None:
    spec = job(ledger)
    heartbeat.watch(held(spec, child.pid))
    descriptors = Path(f"/proc/{os.getpid()}/fd")
    before = len(list(descriptors.iterdir()))
    for second in range(1, 200):
        heartbeat.watch(held(spec, child.pid, second))
    assert len(list(descriptors.iterdir())) <= before + 2


def test_a_run_whose_end_the_ledger_forgot_is_not_kept_at_work_for_ever(
    ledger: Ledger, heartbeat: Heartbeat, child: subprocess.Popen[bytes]
) -> None:
    spec = job(ledger, lease_ttl="1s")
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    heartbeat.watch(held(spec, child.pid, active=False))
    wait_until(lambda: lock_is_free(ledger, spec), SURELY_OVER_SECONDS + 10)
    [rescued] = ledger.rescue()
    assert (rescued.kind, rescued.run_id) == ("rescued", run_id(spec, 0))


def test_a_run_that_has_ended_is_not_written_into_a_ledger_that_lost_it(
    ledger: Ledger, heartbeat: Heartbeat, child: subprocess.Popen[bytes]
) -> None:
    spec = job(ledger, lease_ttl="1s")
    ended, at_work = held(spec, child.pid, active=False), held(spec, os.getppid(), 1)
    ended.has_begun = at_work.has_begun = True
    heartbeat.watch(ended)
    heartbeat.watch(at_work)
    wait_until(lambda: ledger.client.exists(ledger.keys.run(at_work.run_id)), 5)
    assert not ledger.client.exists(ledger.keys.run(ended.run_id))
