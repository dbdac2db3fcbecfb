from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.adoption.foreign_app import ForeignApp
from tests.conftest import DATABASES, database, emptied

Deploy = Callable[..., ForeignApp]


@pytest.fixture(scope="module")
def deploy(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """Deploys an app, on an empty database; what ran before has ended."""
    deployed: list[ForeignApp] = []

    def deploy(module: str, is_supervised: bool, **environ: str) -> ForeignApp:
        for foreign_app in deployed:
            foreign_app.stop()
        url = database(server.url, DATABASES + is_supervised)
        emptied(url)
        directory: Path = tmp_path_factory.mktemp("foreign_app") / "project"
        deployed.append(ForeignApp(module, directory, url, is_supervised, environ))
        return deployed[-1]

    yield deploy
    for foreign_app in deployed:
        foreign_app.stop()
