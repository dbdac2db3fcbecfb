"""The recipe of docs/guarded-tasks.md: a store refuses the write of a run that lost its lease."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from tests.ledger.jobs import admitted, begin, lease_runs_out, run_id, ticks

PAGE = (Path(__file__).parents[2] / "docs" / "guarded-tasks.md").read_text()
[TABLE] = re.findall(r"```sql\n(.*?)```", PAGE, re.S)
[RECIPE] = re.findall(r"```python\n(def claim.*?)```", PAGE, re.S)


@pytest.fixture
def store() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLE + "CREATE TABLE report (text TEXT);")
    return connection


def write(store: sqlite3.Connection, fencing_token: int, text: str) -> None:
    """What a job would do: claim the resource and write, in one transaction."""
    names: dict[str, Any] = {"current_run": lambda: SimpleNamespace(fencing_token=fencing_token)}
    exec(RECIPE, names)
    with store:
        cursor = store.cursor()
        names["claim"](cursor, "report")
        cursor.execute("INSERT INTO report VALUES (?)", (text,))


def test_the_write_of_a_run_that_lost_its_lease_is_refused(
    ledger: Ledger, store: sqlite3.Connection
) -> None:
    spec = admitted(ledger, 0, on_crash="fail")
    sleeper = begin(ledger, run_id(spec, 0))
    write(store, sleeper.fencing_token, "first page")
    lease_runs_out(ledger, spec, run_id(spec, 0))
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    successor = begin(ledger, run_id(spec, 1), "successor")
    write(store, successor.fencing_token, "all anew")
    with pytest.raises(RuntimeError, match="written by a later run"):
        write(store, sleeper.fencing_token, "second page")
    write(store, successor.fencing_token, "and more")
    assert [text for (text,) in store.execute("SELECT text FROM report")] == [
        *("first page", "all anew", "and more")
    ]
    ledger.finish(run_id(spec, 1), "successor", RunState.SUCCEEDED)
