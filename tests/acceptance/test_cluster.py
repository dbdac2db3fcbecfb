"""A ledger on a Redis Cluster of three masters: one dies, or its slot is moved, while jobs run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.ledger.connection import Unavailable
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.clusters import Cluster, client_of
from tests.acceptance.project import Project
from tests.acceptance.test_sentinel import (
    LEASE_SECONDS,
    after_kills,
    deploy,
    figures_of,
    goes_on,
)

#: More of them, for figures to quote: CLUSTER_KILLS=10.
KILLS = int(os.environ.get("CLUSTER_KILLS", "1"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    group = Cluster(tmp_path / "redis")
    try:
        group.start()
        opened = Ledger.open(Settings(group.url))
        opened.acknowledge_server()
        opened.client.close()
        yield group
    finally:
        group.stop()


@pytest.fixture
def project(tmp_path: Path, cluster: Cluster, redis_url: str) -> Iterator[Project]:
    """Its broker is another server."""
    deployed = Project(tmp_path / "team", cluster.url, broker=redis_url)
    yield deployed
    deployed.stop()


@pytest.mark.timeout(600 + 60 * KILLS)
def test_the_death_of_a_clusters_master_lets_nothing_overlap(
    project: Project, cluster: Cluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = deploy(project, gate)
    assert project.supervisor("doctor").returncode == 0
    figures = after_kills(project, held, gate, KILLS, cluster.kill_master, cluster.restore)
    assert (figures.overlaps, figures.unaccounted, figures.lost) == (0, 0, 0)


def test_a_slot_that_is_moved_at_work_loses_and_repeats_nothing(
    project: Project, cluster: Cluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = deploy(project, gate)
    moved_at = project.ledger.now().timestamp()
    target = cluster.move_slot()
    assert cluster.master() is target
    relieved = goes_on(project, moved_at + LEASE_SECONDS)
    gate.touch()

    assert project.run_when(held, "succeeded").attempt == 1
    figures = figures_of(project, relieved)
    print(figures)  # noqa: T201
    assert (figures.overlaps, figures.unaccounted, figures.lost, figures.twice) == (0, 0, 0, 0)


def test_a_function_changes_nothing_while_its_slot_is_moved(cluster: Cluster) -> None:
    ledger = Ledger.open(Settings(cluster.url))
    ledger.drains.drain("first")
    source, _ = cluster.begin_to_move_slot()
    with pytest.raises(Unavailable, match="slot is moved"):
        ledger.drains.drain("second")
    assert client_of(source).hkeys(ledger.keys.drained) == ["first"]

    cluster.move_slot()
    ledger.drains.drain("second")
    assert [*ledger.drains.since()] == ["first", "second"]
    ledger.client.close()
