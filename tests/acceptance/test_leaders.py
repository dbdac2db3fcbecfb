"""Many beats, one leads: what happens when leaders die, freeze and wake up, with many jobs due."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from supervisor.features.audit.step import audit
from tests.acceptance.project import Project
from tests.processes import children_of, freeze, is_alive, thaw
from tests.waiting import wait_until

JOBS = 60


@pytest.fixture
def busy(project: Project) -> Iterator[Project]:
    """Many jobs due every second. Without a worker all but the first run of each are skipped."""
    names = "\n".join(f"  job-{i}: {{task: team.work, every: 1s}}" for i in range(JOBS))
    project.schedule("jobs:\n" + names)
    yield project


def leading_pid(project: Project) -> int | None:
    leader = project.ledger.beat().leader
    return int(leader.rpartition(":")[2]) if leader else None


def ticks_lost_or_doubled(project: Project) -> dict[str, str]:
    """Per job, what the audit finds; and counters that say a tick was admitted twice."""
    ledger = project.ledger
    return {
        finding.job: str(finding)
        for finding in audit(ledger, ledger.scheduled().values(), ledger.now())
    }


def ticking(project: Project) -> bool:
    ledger = project.ledger
    if len(ledger.scheduled()) < JOBS:
        return False
    counted = [ledger.job(f"job-{i}").counters.get("ticks", 0) for i in (0, JOBS - 1)]
    return min(counted) > 2


def test_no_tick_is_lost_or_doubled_when_leaders_are_killed(busy: Project) -> None:
    beats: list[subprocess.Popen[bytes]] = [busy.beat(), busy.beat()]
    wait_until(lambda: ticking(busy), 30)
    assert ticks_lost_or_doubled(busy) == {}
    # At a random moment of the second in which the jobs are due.
    moment = time.monotonic() + random.random()
    wait_until(lambda: time.monotonic() > moment)
    victim = leading_pid(busy)
    [dead] = [beat for beat in beats if beat.pid == victim]
    dead.kill()
    dead.wait()
    wait_until(lambda: leading_pid(busy) != victim, 20)
    seen = busy.ledger.job("job-0").counters["ticks"]
    wait_until(lambda: busy.ledger.job("job-0").counters["ticks"] > seen + 3, 20)
    assert ticks_lost_or_doubled(busy) == {}


def test_a_leader_frozen_past_its_lock_emits_nothing_when_it_wakes(busy: Project) -> None:
    beats = [busy.beat(), busy.beat()]
    wait_until(lambda: ticking(busy), 30)
    frozen = leading_pid(busy)
    assert frozen is not None
    freeze([frozen])
    wait_until(lambda: leading_pid(busy) != frozen, 20)
    thaw([frozen])
    wait_until(lambda: len(busy.events("beat", "leadership held elsewhere")) >= 2, 10)
    assert leading_pid(busy) != frozen
    seen = busy.ledger.job("job-0").counters["ticks"]
    wait_until(lambda: busy.ledger.job("job-0").counters["ticks"] > seen + 3, 20)
    assert ticks_lost_or_doubled(busy) == {}
    assert [beat.poll() for beat in beats] == [None, None]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of the killed")
def test_a_beat_within_a_worker_ends_when_the_worker_is_killed(project: Project) -> None:
    """It would lead on for ever, with the app as it was when it started."""
    project.schedule("jobs:\n  seldom: {task: team.work, every: 24h}")
    worker = project.worker("-B", "-P", "prefork")
    project.wait_for_jobs()
    beat = wait_until(lambda: leading_pid(project), 20)  # its jobs are there before it says so
    assert beat in children_of(worker.pid)
    worker.kill()
    wait_until(lambda: not is_alive(beat), 20)
