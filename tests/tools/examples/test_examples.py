from __future__ import annotations

import importlib
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from examples.checksums import LISTING, checksum_docs
from examples.fetch import flaky_fetch
from examples.sampling import sample_load
from examples.storage import database
from examples.summary import daily_summary, summarise
from examples.witness import read
from supervisor.catalog.schedule_files import load
from supervisor.guard.current_run import CurrentRun, set_current_run
from tests.waiting import scaled, status_of, wait_until

SCHEDULES = Path(__file__).parents[3] / "schedules"
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (tree / name).write_text(name)
    return tree


def rows(query: str) -> list[tuple[object, ...]]:
    with database() as db:
        return db.execute(query).fetchall()


def store(*samples: tuple[float, float]) -> None:
    with database() as db, db:
        db.executemany("INSERT INTO samples (sampled_at, load) VALUES (?, ?)", samples)


def test_samples_are_kept_up_to_a_bound() -> None:
    for _ in range(4):
        sample_load(keep=3)
    assert rows("SELECT count(*), min(id), max(id) FROM samples") == [(3, 2, 4)]


def test_changes_of_the_tree_are_recorded(tree: Path) -> None:
    assert checksum_docs(tree=str(tree), seconds=0) == 3
    (tree / "a.md").write_text("changed")
    (tree / "b.md").unlink()
    (tree / "d.md").write_text("new")
    assert checksum_docs(tree=str(tree), seconds=0) == 3
    assert checksum_docs(tree=str(tree), seconds=0) == 0
    recorded = rows("SELECT path, what FROM changes WHERE id > 3 ORDER BY path")
    assert [(Path(str(path)).name, what) for path, what in recorded] == [
        ("a.md", "changed"),
        ("b.md", "removed"),
        ("d.md", "added"),
    ]


def test_a_fetch_fails_while_the_listing_is_written_and_succeeds_after(
    home: Path, tree: Path
) -> None:
    code = f"from examples.checksums import *; checksum_docs({str(tree)!r}, seconds=3)"
    writer = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: (home / LISTING).exists() and (home / LISTING).stat().st_size > 0)
        with pytest.raises(json.JSONDecodeError):
            flaky_fetch()
        assert not (home / "fetched.sha256").exists()
        assert status_of(writer, 20) == 0
    finally:
        writer.kill()
        status_of(writer, 10)
    assert flaky_fetch() == 3
    assert len((home / "fetched.sha256").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("day", "hours"), [(date(2026, 3, 28), 24), (date(2026, 3, 29), 23), (date(2026, 10, 25), 25)]
)
def test_a_summary_is_of_the_zones_own_day(day: date, hours: int) -> None:
    midnight = datetime(day.year, day.month, day.day, tzinfo=BERLIN).timestamp()
    inside, outside = (
        (midnight, midnight + hours * 3600 - 1),
        (midnight - 1, midnight + hours * 3600),
    )
    store(*((at, 2.0) for at in inside), *((at, 9.0) for at in outside))
    assert summarise(day, BERLIN) == {
        "day": day.isoformat(),
        "samples": 2,
        "load": {"mean": 2.0, "max": 2.0},
        "cpu": {"mean": None, "max": None},
        "memory": {"mean": None, "max": None},
    }


@pytest.fixture
def nightly_run() -> Iterator[CurrentRun]:
    nominal_at = datetime(2026, 3, 2, 2, 30, tzinfo=BERLIN)
    run = CurrentRun("daily-summary", "daily-summary@2026-03-02T01:30:00Z", nominal_at, 2, 7)
    set_current_run(run)
    yield run
    set_current_run(None)


def test_a_late_nightly_run_still_summarises_its_own_day(
    home: Path, nightly_run: CurrentRun
) -> None:
    assert daily_summary(timezone="Europe/Berlin")["day"] == "2026-03-01"
    assert (home / "summary-2026-03-01.json").exists()
    (execution,) = read(home / "witness.jsonl").executions
    assert execution.run == nightly_run.run_id


LONG = [
    "checksums.checksum_docs(seconds=2, tree='.')",
    "report.load_report(seconds=2)",
    "archive.archive_report(seconds=2)",
    "documents.words('a.md', seconds=2)",
]


@pytest.mark.parametrize("call", LONG)
def test_an_example_killed_in_the_middle_can_run_again(call: str, home: Path, tree: Path) -> None:
    store((time.time(), 1.0), (time.time(), 2.0))
    module = call.partition(".")[0]
    code = f"from examples import {module}; {call}"
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=tree)
    wait_until(lambda: (home / "witness.jsonl").exists())
    killed.kill()
    status_of(killed, 10)
    again = [sys.executable, "-c", code.replace("seconds=2", "seconds=0")]
    assert subprocess.run(again, cwd=tree, timeout=scaled(30), check=False).returncode == 0
    with sqlite3.connect(home / "examples.sqlite3") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


def test_the_schedule_files_name_and_bound_the_tasks_of_the_examples() -> None:
    source = Path(importlib.import_module("examples").__path__[0])
    defined = "".join(path.read_text() for path in source.glob("*.py"))
    for spec in load(SCHEDULES).specs.values():
        witnesses = [f"{spec.name}.{step.label}" for step in spec.steps] or [spec.name]
        for task in [step.task for step in spec.steps] or [spec.task]:
            assert f'name="{task}"' in defined
        for who in witnesses:
            assert re.search(rf'witness\(f?"{re.escape(who)}["#]', defined), who
        assert spec.soft_time_limit, spec.name
        assert spec.time_limit, spec.name
