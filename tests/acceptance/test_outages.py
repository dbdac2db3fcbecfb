"""Redis is unavailable for a while: each tick has one outcome all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.project import Project, overlapping, ticks_between
from tests.acceptance.test_ticks import accounted
from tests.waiting import wait_until


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, Project]]:
    """A project on a server of its own, which the test may stop."""
    with EmbeddedServer(tmp_path / "valkey") as server:
        project = Project(tmp_path / "team", server.url)
        project.ledger.acknowledge_server()
        yield server, project
        project.stop()


@pytest.mark.parametrize("outage", ["paused", "restarted"])
def test_every_tick_of_an_outage_of_redis_has_one_outcome(
    fragile: tuple[EmbeddedServer, Project], outage: str
) -> None:
    server, project = fragile
    project.schedule("""
defaults: {lease_ttl: 3s}  # for so long nothing starts on a server that was restarted
jobs:
  all: {task: team.work, every: 1s, overlap: queue_all, catchup: all}
  skips: {task: team.work, every: 1s, args: [1.5]}
""")
    beat = project.beat()
    worker = project.worker(processes=4)
    ledger = project.ledger
    wait_until(lambda: len(project.starts("all")) >= 2, 20)

    if outage == "paused":
        ledger.client.client_pause(10_000, all=True)
    else:
        server.stop()
        # Each of them is a second of waiting, and some time of trying again.
        wait_until(lambda: len(project.events("beat", "turn failed")) >= 6, 30)
        server.start()

    before, workers = len(project.starts("all")), [worker]

    def caught_up() -> bool:
        # kombu may end a worker whose connection breaks; whatever runs workers starts another.
        if workers[-1].poll() is not None:
            workers.append(project.hire(processes=4))
        return len(project.starts("all")) >= before + 12

    wait_until(caught_up, 60)
    assert beat.poll() is None
    assert set(ticks_between(project.starts("all"))) == {1.0}
    for job in ("all", "skips"):
        assert overlapping(project.witness(job)) == []
        wait_until(lambda job=job: accounted(project.ledger, job))  # type: ignore[misc]
