"""Links between hosts that are cut and slowed: who stops, who takes over, what is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from supervisor.features.audit.step import compare_records
from supervisor.job.run import Run
from supervisor.ledger.leader import LEADER_TTL
from supervisor.ledger.run_request import RunRequest
from tests.acceptance.project import Sign
from tests.hosts.fleet import BEATS, WORKERS, Fleet, fleet
from tests.hosts.network import Host
from tests.processes import is_alive
from tests.waiting import scaled, wait_until

LEASE_TTL = 3.0

#: `long` goes on when it is told to end: only a kill ends it.
SCHEDULE = """
defaults: {lease_ttl: 3s}
jobs:
  long: {task: team.stubborn, every: 24h, args: [5], paused: true}
  first: {task: team.work, every: 1s, overlap: queue_all}
  second: {task: team.work, every: 1s, overlap: queue_all, args: [0.3]}
  third: {task: team.work, every: 1s, overlap: skip, args: [0.7]}
"""
FREQUENT = ("first", "second", "third")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("hosts"), SCHEDULE) as whole:
        yield whole


def test_a_worker_that_is_cut_off_ends_its_run_before_another_begins_it(deployed: Fleet) -> None:
    begun_at = deployed.ledger.now()
    run, first = long_run(deployed)
    worker = deployed.host_of(deployed.ledger.run(run.id).attempts[0].worker)
    with deployed.network.cut(worker):
        cut_at = time.time()
        wait_until(lambda: not is_alive(first.pid))
        gone_at = time.time()
        again = wait_until(lambda: starts(deployed, run)[1:])[0]
    healed_at = time.time()
    assert gone_at < again.at
    assert again.at - cut_at < LEASE_TTL + scaled(5)
    wait_until(lambda: deployed.ledger.run(run.id).state == "succeeded", 20)
    wait_until(lambda: works_since(deployed, worker, healed_at), 40)
    all_is_accounted_for(deployed, begun_at)
    attempts = deployed.ledger.run(run.id).attempts
    assert [attempt.outcome for attempt in attempts] == ["lost", "succeeded"]
    assert deployed.host_of(attempts[1].worker) != worker
    wait_until(lambda: deployed.ledger.job("long").counters.get("leases_lost") == 1)


def test_after_a_leader_is_cut_off_no_tick_is_emitted_twice(deployed: Fleet) -> None:
    begun_at = deployed.ledger.now()
    leader = wait_until(deployed.leader)
    [other] = [deployed.hosts[name] for name in BEATS if name != leader.name]
    with deployed.network.cut(leader):
        cut_at = time.monotonic()
        wait_until(lambda: deployed.leader() == other, 20)
        assert time.monotonic() - cut_at < LEADER_TTL.total_seconds() + scaled(5)
        wait_until(lambda: f'is_leader{{instance="{other.name}:' in deployed.metrics())
    wait_until(
        lambda: len(deployed.projects[leader.name].events("beat", "leadership held elsewhere")) > 0,
        30,
    )
    all_is_accounted_for(deployed, begun_at)
    assert deployed.leader() == other
    started = [
        sign.run
        for job in FREQUENT
        for sign in deployed.signs(job)
        if sign.event == "start" and datetime.fromisoformat(sign.nominal_at) > begun_at
    ]
    assert len(started) == len(set(started)) > 9


def test_leases_hold_over_a_link_that_has_become_slow(deployed: Fleet) -> None:
    begun_at = deployed.ledger.now()
    run, _ = long_run(deployed)
    worker = deployed.host_of(deployed.ledger.run(run.id).attempts[0].worker)
    with deployed.network.narrow(worker, bits_per_second=64_000):
        assert seconds_of_an_echo(deployed, worker) > 0.4
        wait_until(lambda: deployed.ledger.run(run.id).state == "succeeded")
    assert [attempt.outcome for attempt in deployed.ledger.run(run.id).attempts] == ["succeeded"]
    all_is_accounted_for(deployed, begun_at)


def long_run(deployed: Fleet) -> tuple[Run, Sign]:
    """A run that has begun, and its own word for it."""
    ledger = deployed.ledger
    run = ledger.trigger(ledger.spec("long"), RunRequest())
    return run, wait_until(lambda: starts(deployed, run))[0]


def starts(deployed: Fleet, run: Run) -> list[Sign]:
    signs = deployed.signs(run.job)
    return [sign for sign in signs if sign.run == run.id and sign.event == "start"]


def works_since(deployed: Fleet, worker: Host, since: float) -> bool:
    return any(sign.at > since for sign in deployed.projects[worker.name].witness())


def seconds_of_an_echo(deployed: Fleet, host: Host) -> float:
    """There and back with 4 kB: what it takes once the link's own buffer is full."""
    asking = (
        "import redis, time\n"
        "client = redis.Redis.from_url(team.app.conf.broker_url)\n"
        "began_at = client.ping() and time.monotonic()\n"
        "client.echo('x' * 4000)\n"
        "print(time.monotonic() - began_at)"
    )
    return float(deployed.projects[host.name].code(asking))


def all_is_accounted_for(deployed: Fleet, since: datetime) -> None:
    """Everybody is back, every tick since then has one record, and no overlap of `long` is counted.

    Of the others one may be: a run that has ended, and can say so only when its link is back,
    counts as at work until then.
    """
    ledger = deployed.ledger
    until = ledger.now()
    for job in FREQUENT:
        spec = ledger.spec(job)
        wait_until(lambda spec=spec: not compare_records(ledger, spec, since, until).missing, 20)  # type: ignore[misc]
        assert compare_records(ledger, spec, since, until).doubled == ()
    expected = ("supervisor_up 1.0", f'queue_consumers{{queue="celery"}} {float(len(WORKERS))}')
    wait_until(lambda: all(line in deployed.metrics() for line in expected), 30, 0.5)
    assert ledger.job("long").counters.get("overlaps", 0) == 0
