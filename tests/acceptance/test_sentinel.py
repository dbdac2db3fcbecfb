"""A failover by Sentinel while jobs run every second: what starts, what is lost, who overlaps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.features.audit.step import audit
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.project import Project, overlapping
from tests.acceptance.sentinels import Watched
from tests.waiting import wait_until

TICKING = [f"tick-{number}" for number in range(8)]
LEASE_SECONDS = 4

#: Several times what a failover, the lease's time and the workers' new connections take.
TIMEOUT_SECONDS = 30

#: `held` works through the failover: it trusts its lease of 30 s for 20.
SCHEDULE = f"""\
defaults: {{lease_ttl: {LEASE_SECONDS}s}}
jobs:
  held: {{task: team.tell, args: [GATE], every: 1d, lease_ttl: 30s}}
  in-a-row: {{every: 1s, task: team.work, args: [0.7], serial: true, overlap: queue_one}}
""" + "".join(f"  {name}: {{every: 1s, task: team.work, args: [0.3]}}\n" for name in TICKING)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    group = Watched(tmp_path / "redis")
    group.start()
    Ledger.open(Settings(group.url)).acknowledge_server()
    yield group
    group.stop()


@pytest.fixture
def project(tmp_path: Path, watched: Watched) -> Iterator[Project]:
    deployed = Project(tmp_path / "team", watched.url)
    yield deployed
    deployed.stop()


def test_a_failover_lets_nothing_overlap_and_leaves_no_tick_unaccounted(
    project: Project, watched: Watched, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = deploy(project, gate)
    killed_at = project.ledger.now().timestamp()
    watched.kill_primary()
    were_relieved = goes_on(project, killed_at + LEASE_SECONDS)
    gate.touch()
    assert project.run_when(held, "succeeded").attempt == 1 or were_relieved
    assert starts_within(project, *grace_of(project)) == []
    ledger = project.ledger
    assert list(audit(ledger, ledger.scheduled().values(), ledger.now())) == []
    for job in ("held", "in-a-row", *TICKING):
        assert overlapping(project.witness(job)) == []
        assert "overlaps" not in ledger.job(job).counters


def deploy(project: Project, gate: Path) -> str:
    """The id of a long run that is on until the gate is there."""
    project.schedule(SCHEDULE.replace("GATE", str(gate)))
    project.beat()
    project.beat()
    hire_all(project)
    wait_until(lambda: all(map(project.starts, [*TICKING, "in-a-row"])), 40)
    held = project.ledger.trigger(project.ledger.spec("held"))
    wait_until(lambda: project.starts("held"), 20)
    return held.id


def hire_all(project: Project) -> None:
    project.hire(processes=6)
    project.hire(processes=6)
    project.hire(queues="serial.in-a-row", processes=1)


def goes_on(project: Project, moment: float) -> bool:
    """All jobs start after that moment. Returns whether others had to be hired for it.

    Celery can end a worker whose connection breaks, or stay between two steps of connecting again:
    `supervisor health worker` finds it, and whatever runs workers starts another.
    """
    relieved = False
    impatient_at = time.monotonic() + TIMEOUT_SECONDS

    def are_started() -> bool:
        nonlocal relieved
        if not relieved and time.monotonic() > impatient_at:
            relieved = True
            hire_all(project)
        return all_started_since(project, moment)

    wait_until(are_started, 2 * TIMEOUT_SECONDS)
    return relieved


def all_started_since(project: Project, moment: float) -> bool:
    signs = [sign for sign in project.witness() if sign.event == "start" and sign.at > moment]
    return {sign.run.partition("@")[0] for sign in signs} >= {*TICKING, "in-a-row"}


def grace_of(project: Project) -> tuple[float, float]:
    """From when the ledger saw another server, and for the shortest lease's time."""
    ledger = project.ledger
    since = int(ledger.client.hget(ledger.keys.server, "since")) / 1000
    return since, since + LEASE_SECONDS


def starts_within(project: Project, first: float, last: float) -> list[str]:
    signs = project.witness()
    return [sign.run for sign in signs if sign.event == "start" and first < sign.at < last]
