"""Deployments: one for each test, or one that the tests of a module share.

A module whose tests share one says in JOBS what is scheduled. It may have lines for the end of the
team's module in SETTINGS, and say how many WORKERS there are, with how many PROCESSES each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.project import POOL, Project
from tests.acceptance.workers import Workers
from tests.conftest import DATABASES, database, emptied


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """For what a test starts, and how it is ended."""
    with ExitStack() as callbacks:
        yield callbacks


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Project]:
    """In which nothing runs yet."""
    deployed = Project(tmp_path / "team", redis_url)
    yield deployed
    deployed.stop()


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """With the module's settings and schedule; nothing runs yet."""
    url = database(server.url, DATABASES)
    emptied(url)
    deployed = Project(tmp_path_factory.mktemp("shared") / "team", url)
    deployed.extend(getattr(request.module, "SETTINGS", ""))
    deployed.schedule(request.module.JOBS)
    yield deployed
    deployed.stop()


@pytest.fixture(scope="module")
def team(request: pytest.FixtureRequest, shared: Project) -> Project:
    """With a beat and a worker."""
    shared.beat()
    processes = getattr(request.module, "PROCESSES", 2)
    for _ in range(processes if POOL == "solo" else 1):
        shared.worker(processes=processes)
    shared.wait_for_jobs()
    return shared


@pytest.fixture(scope="module")
def shared_workers(request: pytest.FixtureRequest, shared: Project) -> Workers:
    module = vars(request.module)
    processes, size = module.get("PROCESSES", 2), module.get("WORKERS", 3)
    found = Workers(shared, processes=processes, size=max(size, processes * (POOL == "solo")))
    shared.beat()
    found.staff()
    shared.wait_for_jobs()
    return found


@pytest.fixture
def workers(shared_workers: Workers) -> Workers:
    """With a beat, for tests that kill workers."""
    return shared_workers.staff()
