"""documents: a job of several tasks, which makes a folder of documents searchable.

1. `list_files` names the documents; beside it, `measure_tree` measures them.
2. `words` runs once for each document, and stores its words under the run and the path: a
   document that is read twice, because its worker died, counts once.
3. `build_index` makes one full-text index of them.
4. `report` says what is in it, and what the steps before handed on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from celery import shared_task

from examples.checksums import look
from examples.full_text import most_frequent, replace_index, search
from examples.pacing import spread
from examples.storage import database, directory, write_atomically
from examples.witness import witness
from supervisor import current_run

REPORT = "documents.json"

WORD = re.compile(r"[^\W\d_]+")

Item = TypeVar("Item")


@shared_task(name="documents.list_files")
def list_files(tree: str, limit: int = 40, keep_minutes: float = 10) -> dict[str, list[str]]:
    """The documents of a tree; also drops the words that earlier runs stored."""
    with witness("documents.list_files"):
        found = [entry.path for entry in look(Path(tree), 1_000, seconds=0)]
        files = [str(path) for path in found if path.suffix == ".md"][:limit]
        if not files:
            raise FileNotFoundError(f"there is no document in {tree!r}")
        _forget_words_before(time.time() - 60 * keep_minutes)
        _log("%s documents in %s", len(files), tree)
        return {"files": files}


@shared_task(name="documents.measure_tree")
def measure_tree(tree: str, seconds: float = 2) -> dict[str, dict[str, int]]:
    """How much there is to read."""
    with witness("documents.measure_tree"):
        sizes = {"files": 0, "bytes": 0, "lines": 0}
        entries = look(Path(tree), 1_000, seconds=0)
        for entry in _watched(entries, seconds, "files measured"):
            content = entry.path.read_bytes()
            sizes["files"] += 1
            sizes["bytes"] += len(content)
            sizes["lines"] += content.count(b"\n")
        return {"sizes": sizes}


@shared_task(name="documents.words")
def words(file: str, seconds: float = 3) -> None:
    """Stores the words of one document, in their order."""
    run = current_run()
    with witness(f"documents.words#{run.item if run else 0}"):
        found: list[str] = []
        for line in _watched(Path(file).read_text().splitlines(), seconds, file):
            found += WORD.findall(line.lower())
        with database() as db, db:
            db.execute(
                "INSERT OR REPLACE INTO extracts (run, path, extracted_at, words)"
                " VALUES (?, ?, ?, ?)",
                (_run_id(), file, time.time(), " ".join(found)),
            )
        _log("%s: %s words", file, len(found))


@shared_task(name="documents.build_index")
def build_index(files: Sequence[str], seconds: float = 2) -> dict[str, int]:
    """One index of what was extracted; a document that could not be read is not in it."""
    with witness("documents.build_index"):
        extracts = _extracts()
        known = [file for file in files if file in extracts]
        texts = [(file, extracts[file]) for file in _watched(known, seconds, "documents indexed")]
        replace_index(texts)
        _log("%s of %s documents are in the index", len(known), len(files))
        return {"indexed": len(known)}


@shared_task(name="documents.report")
def report(
    tree: str, indexed: int, sizes: Mapping[str, int], words: Mapping[str, int], look_for: str
) -> dict[str, Any]:
    """What is in the index. `words` is what became of the batch of that name."""
    with witness("documents.report"):
        frequent, matches = most_frequent(), search(look_for)
        found = {
            "run": _run_id(),
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "tree": {"path": tree, **sizes},
            "documents": {"indexed": indexed, "unreadable": words["failed"]},
            "most_frequent": frequent,
            "search": {"for": look_for, "found": {m.path: m.snippet for m in matches}},
        }
        write_atomically(directory() / REPORT, (json.dumps(found, indent=2) + "\n").encode())
        _log("most frequent: %s", ", ".join(frequent))
        _log("%r is in %s", look_for, ", ".join(match.path for match in matches) or "none")
        return {"frequent": list(frequent)}


def _watched(items: Sequence[Item], seconds: float, what: str) -> Iterator[Item]:
    """The items over `seconds`, each with a word to the run, if there is one, of how far it is."""
    run = current_run()
    for done, item in enumerate(spread(items, seconds), start=1):
        yield item
        if run:
            run.progress(done, len(items), what)


def _log(text: str, *args: object) -> None:
    run = current_run()
    if run:
        run.log(text, *args)


def _run_id() -> str:
    run = current_run()
    return run.run_id if run else "by hand"


def _extracts() -> dict[str, str]:
    with database() as db:
        rows = db.execute("SELECT path, words FROM extracts WHERE run = ?", (_run_id(),))
        return dict(rows.fetchall())


def _forget_words_before(moment: float) -> None:
    """By age, and not by run: a run that comes late must not take away the words of a later one."""
    with database() as db, db:
        db.execute("DELETE FROM extracts WHERE extracted_at < ?", (moment,))
