"""A worker that cannot reach the ledger while others can, or whose broker hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.job.run import Run, RunState
from supervisor.sending.publisher import Publisher
from tests.acceptance.project import Project
from tests.proxy import Proxy
from tests.waiting import wait_until

JOBS = """
jobs:
  work: {task: team.hold, every: 24h, paused: true, on_crash: fail, lease_ttl: 8s}
  unheard: {task: team.hold, every: 24h, paused: true, on_crash: fail}
  brief: {task: team.hold, every: 24h, paused: true, on_crash: fail, soft_time_limit: 5s}
"""


@pytest.fixture
def cut_off(tmp_path: Path, redis_url: str, way: Proxy) -> Iterator[Project]:
    """The same project on another host, which can be cut off from the ledger."""
    project = Project(tmp_path / "cut", way.url, broker=redis_url)
    yield project
    project.stop()


def test_a_run_that_ended_while_cut_off_overlaps_with_nothing_later(
    project: Project, cut_off: Project, way: Proxy
) -> None:
    project.schedule(JOBS)
    project.beat()
    cut_off.worker(processes=1)
    ledger = project.ledger
    spec = wait_until(lambda: ledger.scheduled().get("work"), 20)
    given_up = ledger.trigger(spec)
    wait_until(lambda: cut_off.starts("work"))
    way.freeze()
    cut_off.let_end(given_up.id)
    project.worker(processes=1)
    project.run_when(given_up.id, "lost")

    successor = ledger.trigger(spec)
    began_at = wait_until(lambda: project.starts("work"))[0].at
    [_, end] = cut_off.witness("work")
    assert end.at < began_at
    wait_until(lambda: ledger.now().timestamp() > began_at + 1)
    way.thaw()
    wait_until(lambda: [e for e in cut_off.events("worker0", "lease lost") if "outcome" in e], 20)
    counters = ledger.job("work").counters
    assert counters["leases_lost"] == 1
    assert "overlaps" not in counters
    assert ledger.run(successor.id).overlapped_with is None


@pytest.mark.parametrize("job", ["unheard", "brief"])
def test_a_run_whose_body_never_started_has_not_crashed(
    project: Project, cut_off: Project, way: Proxy, job: str
) -> None:
    """It had begun, as the ledger has it; the worker never heard of it, and gave up.

    For `brief` a soft time limit comes before the worker itself gives up.
    """
    project.schedule(JOBS)
    project.beat()
    cut_off.worker(processes=1)
    ledger = project.ledger
    wait_until(lambda: job in ledger.scheduled(), 20)
    before = project.trigger(job)
    cut_off.let_end(before.id)
    project.run_when(before.id, "succeeded")
    # Until the child has its reply, which may be lost as well, it reports the end again and again.
    wait_until(lambda: cut_off.events("worker0", "run ended"))
    if job == "brief":
        way.hold_replies()
    else:
        way.replies_to_lose = 1_000_000
    run = project.trigger(job)
    wait_until(lambda: cut_off.events("worker0", "run not begun"), 30)
    assert ledger.run(run.id).state is RunState.RUNNING
    cut_off.let_end(run.id)
    ledger.drains.drain("celery")  # it stays queued
    way.replies_to_lose = 0
    way.thaw()
    obstacle = "its worker could not begin it: "
    wait_until(lambda: obstacle in project.supervisor("why", run.id).stdout, 20)
    ledger.drains.undrain("celery")
    done = project.run_when(run.id, "succeeded")
    assert job == "brief" or cut_off.events("worker0", "begin undone")
    assert (done.attempt, done.crashes, done.duplicates) == (1, 0, 0)
    assert done.obstacle is None
    assert [start.run for start in cut_off.starts(job)] == [before.id, run.id]
    assert ledger.job(job).counters["started"] == 2


# A broker that neither answers nor breaks: a link whose other end is gone without a word


BROKER_HANGS_JOBS = """
defaults: {paused: true, lease_ttl: 3s, on_crash: fail}
jobs:
  long: {task: team.work, every: 24h, args: [10]}
  killed: {task: team.hang, every: 24h, overlap: queue_one}
"""


@pytest.fixture
def behind(tmp_path: Path, redis_url: str, way: Proxy) -> Iterator[Project]:
    """A project that reaches its ledger directly, and its broker on a way that can be blocked."""
    project = Project(tmp_path / "team", redis_url, broker=way.url)
    yield project
    project.stop()


def sent(project: Project, job: str) -> Run:
    ledger = project.ledger
    run = ledger.trigger(ledger.spec(job))
    with Celery(broker=project.url, set_as_current=False) as app:
        Publisher(supervise(app), ledger).publish([run.id])
    return run


def test_a_broker_that_hangs_keeps_neither_renewals_nor_deaths_waiting(
    behind: Project, way: Proxy
) -> None:
    behind.deploy(BROKER_HANGS_JOBS)
    ledger = behind.ledger
    wait_until(lambda: len(ledger.scheduled()) >= 2, 20)
    long, killed, waiting = sent(behind, "long"), sent(behind, "killed"), sent(behind, "killed")
    wait_until(lambda: behind.starts("long"))
    child = wait_until(lambda: behind.starts("killed"))[0].pid
    way.freeze()
    os.kill(child, SIGKILL)
    behind.run_when(killed.id, "lost")
    # Its lease ends three times over meanwhile, were it not renewed while the broker hangs.
    wait_until(lambda: not ledger.run(long.id).state.is_open, 30)
    assert [attempt.outcome for attempt in ledger.run(long.id).attempts] == ["succeeded"]
    assert ledger.run(waiting.id).state == "queued"
