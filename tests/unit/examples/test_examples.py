from __future__ import annotations

import importlib
import json
import lzma
import os
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

from examples.archive import archive_report, smallest
from examples.checksums import LISTING, checksum_docs
from examples.fetch import flaky_fetch
from examples.pacing import spread
from examples.report import bootstrap, load_report
from examples.sampling import read_sample, sample_load
from examples.storage import database, write_atomically
from examples.summary import daily_summary, summarise
from examples.witness import read
from supervisor.files.schedule_files import load
from supervisor.guard.current_run import CurrentRun, set_current_run
from tests.waiting import patience, status_of, wait_until

SCHEDULES = Path(__file__).parents[3] / "schedules"
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SUPERVISOR_EXAMPLES_DIR", str(home))
    return home


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


def test_a_sample_without_proc_has_the_load_alone(tmp_path: Path) -> None:
    sample = read_sample(proc=tmp_path / "absent")
    assert sample.load >= 0
    assert (sample.cpu, sample.memory) == (None, None)


def test_a_sample_reads_shares_from_proc(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 0 10 70 10 0 0 0 0 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    sample = read_sample(proc=tmp_path)
    assert sample.memory == 0.75
    assert sample.cpu == 1  # no tick passed, of which none was idle


def test_spread_takes_its_time_and_evenly() -> None:
    began = time.monotonic()
    at = [time.monotonic() - began for _ in spread(range(4), seconds=0.4)]
    assert time.monotonic() - began >= 0.4
    assert all(moment >= 0.1 * number for number, moment in enumerate(at))


def test_work_slower_than_its_spread_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    for _ in spread(range(5), seconds=0.01):
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
    assert rests == [0.0] * 5


def test_the_report_brackets_the_percentile() -> None:
    now = time.time()
    store(*((now - age, float(age)) for age in range(100)))
    report = load_report(resamples=200, seconds=0)
    p95 = report["p95"]["load"]
    assert 80 < p95["low"] <= p95["middle"] <= p95["high"] < 100
    assert "cpu" not in report["p95"]


def test_a_report_before_the_first_sample_is_empty_and_takes_its_time(home: Path) -> None:
    began = time.monotonic()
    load_report(resamples=10, seconds=0.3)
    assert time.monotonic() - began >= 0.3
    assert json.loads((home / "load-report.json").read_text())["p95"] == {}


def test_bootstrap_leaves_out_what_was_not_measured() -> None:
    assert bootstrap({"load": [1.0, 1.0], "cpu": []}, 10, 0) == {
        "load": {"low": 1.0, "middle": 1.0, "high": 1.0}
    }


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


def test_only_a_deep_pass_reads_what_looks_unchanged(tree: Path) -> None:
    checksum_docs(tree=str(tree), seconds=0, deep_every=3)
    file = tree / "a.md"
    before = file.stat()
    file.write_text("A.MD")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    passes = [checksum_docs(tree=str(tree), seconds=0, deep_every=3) for _ in range(2)]
    assert passes == [0, 1]


def test_hidden_folders_and_files_past_the_limit_are_left_out(tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".git" / "config").write_text("")
    assert checksum_docs(tree=str(tree), seconds=0) == 3
    assert checksum_docs(tree=str(tree), seconds=0, limit=2) == 1


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


def test_a_failed_fetch_leaves_what_was_fetched_before(home: Path, tree: Path) -> None:
    checksum_docs(tree=str(tree), seconds=0)
    flaky_fetch()
    (home / LISTING).write_text("[\n")
    with pytest.raises(json.JSONDecodeError):
        flaky_fetch()
    assert len((home / "fetched.sha256").read_text().splitlines()) == 3


def test_the_archive_holds_the_samples(home: Path) -> None:
    store(*((float(number), 1.0) for number in range(300)))
    size = archive_report(seconds=0)
    packed = (home / "samples.json.xz").read_bytes()
    assert len(packed) == size
    samples = json.loads(lzma.decompress(packed))
    assert samples[-1] == [0.0, 1.0, None, None]
    assert len(samples) == 300


def test_the_archive_is_no_larger_than_the_first_trial() -> None:
    content = json.dumps(list(range(2000))).encode()
    assert len(smallest(content, 0)) <= len(lzma.compress(content, preset=6))


@pytest.mark.parametrize(
    ("day", "hours"),
    [(date(2026, 3, 28), 24), (date(2026, 3, 29), 23), (date(2026, 10, 25), 25)],
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


def test_a_failed_write_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "report"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "text")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert target.read_bytes() == b"old"


def test_many_processes_may_open_the_new_database_at_once() -> None:
    code = "from examples.storage import database\nwith database(): pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
    assert [status_of(process, 30) for process in processes] == [0] * 6


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
    assert subprocess.run(again, cwd=tree, timeout=patience(30), check=False).returncode == 0
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
