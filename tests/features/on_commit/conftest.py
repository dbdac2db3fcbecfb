from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def engine(database: Path) -> Iterator[Engine]:
    # Not in every environment of the matrix there is SQLAlchemy.
    from tests.features.on_commit.shop import orders_engine

    made = orders_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    from sqlalchemy.orm import Session

    with Session(engine) as opened:
        yield opened
