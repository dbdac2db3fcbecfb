from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.adoption.stranger import Stranger
from tests.conftest import DATABASES, database, emptied

Deploy = Callable[..., Stranger]


@pytest.fixture(scope="module")
def deploy(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """Deploys an app, on an empty database; what ran before has ended."""
    deployed: list[Stranger] = []

    def deploy(module: str, is_supervised: bool, **environ: str) -> Stranger:
        for stranger in deployed:
            stranger.stop()
        url = database(server.url, DATABASES + is_supervised)
        emptied(url)
        directory: Path = tmp_path_factory.mktemp("stranger") / "project"
        deployed.append(Stranger(module, directory, url, is_supervised, environ))
        return deployed[-1]

    yield deploy
    for stranger in deployed:
        stranger.stop()
