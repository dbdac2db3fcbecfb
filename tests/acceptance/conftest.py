from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.project import Project


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Project]:
    deployed = Project(tmp_path / "team", redis_url)
    yield deployed
    deployed.stop()
