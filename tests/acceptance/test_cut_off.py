"""A worker that cannot reach the ledger while others can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.project import Project
from tests.proxy import Proxy, proxy_to
from tests.waiting import wait_until

JOBS = """
jobs:
  work: {task: team.hold, every: 24h, paused: true, on_crash: fail, lease_ttl: 8s}
"""


@pytest.fixture
def way(redis_url: str) -> Iterator[Proxy]:
    with proxy_to(redis_url) as proxy:
        yield proxy


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
