"""A broker that neither answers nor breaks: a link whose other end is gone without a word."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.job.run import Run
from supervisor.sending.publisher import Publisher
from tests.acceptance.project import Project
from tests.proxy import Proxy, proxy_to
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 3s, on_crash: fail}
jobs:
  long: {task: team.work, every: 24h, args: [10]}
  killed: {task: team.hang, every: 24h, overlap: queue_one}
"""


@pytest.fixture
def broker(redis_url: str) -> Iterator[Proxy]:
    with proxy_to(redis_url) as proxy:
        yield proxy


@pytest.fixture
def behind(tmp_path: Path, redis_url: str, broker: Proxy) -> Iterator[Project]:
    """A project that reaches its ledger directly, and its broker on a way that can be blocked."""
    project = Project(tmp_path / "team", redis_url, broker=broker.url)
    yield project
    project.stop()


def sent(project: Project, job: str) -> Run:
    ledger = project.ledger
    run = ledger.trigger(ledger.spec(job))
    with Celery(broker=project.url, set_as_current=False) as app:
        Publisher(supervise(app), ledger).publish([run.id])
    return run


def test_a_broker_that_hangs_keeps_neither_renewals_nor_deaths_waiting(
    behind: Project, broker: Proxy
) -> None:
    behind.deploy(JOBS)
    ledger = behind.ledger
    wait_until(lambda: len(ledger.scheduled()) >= 2, 20)
    long, killed, waiting = sent(behind, "long"), sent(behind, "killed"), sent(behind, "killed")
    wait_until(lambda: behind.starts("long"))
    child = wait_until(lambda: behind.starts("killed"))[0].pid
    broker.freeze()
    os.kill(child, SIGKILL)
    behind.run_when(killed.id, "lost")
    # Its lease ends three times over meanwhile, were it not renewed while the broker hangs.
    wait_until(lambda: not ledger.run(long.id).state.is_open, 30)
    assert [attempt.outcome for attempt in ledger.run(long.id).attempts] == ["succeeded"]
    assert ledger.run(waiting.id).state == "queued"
