"""The steps of the `documents` example, as the plain functions that they are."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path

import pytest

from examples.documents import build_index, list_files, measure_tree, report, words
from examples.full_text import replace_index, search
from examples.storage import database
from supervisor.catalog.schedule_files import load
from supervisor.guard.current_run import CurrentRun, set_current_run

ROOT = Path(__file__).parents[3]

TEXTS = {"a.md": "A worker holds a lease.\nThe worker!", "deep/b.md": "Nobody holds a café."}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    for name, text in {**TEXTS, "picture.svg": "<svg/>\n"}.items():
        (tree / name).write_text(text)
    return tree


@pytest.fixture
def runs() -> Iterator[None]:
    yield
    set_current_run(None)


def work_for(run: str) -> None:
    set_current_run(CurrentRun("documents", run, datetime.now(UTC), 1, 1, "words", 0))


def read_all(tree: Path) -> list[str]:
    files = list_files(str(tree))["files"]
    for file in files:
        words(file, seconds=0)
    return files


def extracts() -> list[tuple[str, str]]:
    with database() as db:
        return db.execute("SELECT run, words FROM extracts ORDER BY run, words").fetchall()


def test_what_the_steps_hand_on_makes_an_index_and_a_report_of_it(home: Path, tree: Path) -> None:
    files = read_all(tree)
    assert files == [str(tree / name) for name in TEXTS]
    handed_on = measure_tree(str(tree), seconds=0) | build_index(files, seconds=0)
    assert handed_on == {"sizes": {"files": 3, "bytes": 63, "lines": 2}, "indexed": 2}
    report(str(tree), **handed_on, words={"failed": 0}, look_for="worker lease")
    written = json.loads((home / "documents.json").read_text())
    assert written["documents"] == {"indexed": 2, "unreadable": 0}
    assert written["most_frequent"] == {"worker": 2, "nobody": 1}
    assert written["search"]["found"] == {files[0]: "a [worker] holds a [lease] the [worker]"}


def test_a_document_that_cannot_be_read_fails_its_item(tree: Path) -> None:
    files = read_all(tree)
    (tree / "c.md").write_bytes(b"caf\xe9")
    with pytest.raises(UnicodeDecodeError):
        words(str(tree / "c.md"), seconds=0)
    assert build_index([*files, str(tree / "c.md")], seconds=0) == {"indexed": 2}


@pytest.mark.usefixtures("runs")
def test_a_run_indexes_the_words_that_it_stored_itself(tree: Path) -> None:
    work_for("documents@1")
    read_all(tree)
    work_for("documents@2")
    words(str(tree / "a.md"), seconds=0)
    assert build_index(list_files(str(tree))["files"], seconds=0) == {"indexed": 1}


@pytest.mark.usefixtures("runs")
def test_a_new_run_drops_old_words_and_leaves_those_of_the_last_minutes(tree: Path) -> None:
    work_for("documents@1")
    words(str(tree / "a.md"), seconds=0)
    with database() as db, db:
        db.execute("UPDATE extracts SET extracted_at = ?", (time.time() - 700,))
    work_for("documents@2")
    words(str(tree / "deep/b.md"), seconds=0)
    work_for("documents@3")
    list_files(str(tree))
    assert extracts() == [("documents@2", "nobody holds a café")]


@pytest.mark.parametrize("text", ['"', "holds AND", "NEAR(", "words:a -", "", "^*"])
def test_one_can_look_for_any_text(text: str) -> None:
    replace_index([("a", "who holds and near words a")])
    assert all(match.path == "a" for match in search(text))


def test_a_run_takes_what_the_page_says_and_ends_before_the_next() -> None:
    page = (ROOT / "docs" / "tutorial" / "examples.md").read_text()
    stated = re.search(r"`documents` .* takes (\d+) s, every (\d+) s", page)
    assert stated
    lasts, every = map(int, stated.groups())
    spec = load(ROOT / "schedules").specs["documents"]
    batch = next(step for step in spec.steps if step.foreach)
    limit = signature(list_files).parameters["limit"].default
    documents = min(limit, len(list((ROOT / "docs").rglob("*.md"))))
    rounds = math.ceil(documents / (batch.max_parallel or 1))
    others = sum(
        signature(task).parameters["seconds"].default for task in (measure_tree, build_index)
    )
    needed = rounds * batch.kwargs["seconds"] + others
    assert spec.every == timedelta(seconds=every)
    assert needed <= lasts <= needed + 4, f"{documents} documents"
    assert lasts + 5 <= every
