"""checksum-docs: watches a tree for changes, on a serial queue of its own.

Most passes trust size and modification time and are quick. Every few passes all files are read
again, which takes longer than the interval: the tick that comes meanwhile waits (`queue_one`).

The listing for others is rewritten in place, line by line, as many an export is. Who reads it
at the wrong moment finds half of it: see `fetch`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from celery import shared_task

from examples.pacing import spread
from examples.storage import database, directory
from examples.witness import witness

LISTING = "checksums.json"

KEEP_CHANGES = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the tree, as a look at its directory entry shows it."""

    path: Path
    size: int
    mtime_ns: int


Checksums = Mapping[Entry, str]


@shared_task(name="examples.checksum_docs")
def checksum_docs(
    tree: str = ".", limit: int = 400, deep_every: int = 7, seconds: float = 2.8
) -> int:
    """One pass over at most `limit` files; returns how many changes it saw."""
    with witness("checksum-docs"), database() as db:
        known = _known(db)
        deep = (_passes(db) + 1) % deep_every == 0
        entries = look(Path(tree), limit, seconds / 4)
        found = rewrite_listing(entries, {} if deep else known, seconds * (3 if deep else 0.75))
        return _record(db, known, found)


def look(tree: Path, limit: int, seconds: float) -> list[Entry]:
    """The tree's first `limit` files; hidden folders and caches are left out."""
    paths = list(islice(_paths(tree), limit))
    entries = []
    for path in spread(paths, seconds):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # gone since the directory was read
        entries.append(Entry(path, status.st_size, status.st_mtime_ns))
    return entries


def rewrite_listing(entries: Sequence[Entry], trusted: Checksums, seconds: float) -> Checksums:
    """Checksums of all entries, calculated where no trusted one is at hand, listed as they come."""
    found: dict[Entry, str] = {}
    with (directory() / LISTING).open("w", buffering=1) as listing:
        listing.write("[\n")
        for entry in spread(entries, seconds):
            try:
                found[entry] = trusted.get(entry) or _checksum(entry.path)
            except OSError:
                continue  # gone, or not ours to read
            comma = "," if len(found) > 1 else ""
            listing.write(comma + json.dumps([str(entry.path), found[entry]]) + "\n")
        listing.write("]\n")
    return found


def _paths(tree: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__pycache__")
        yield from (Path(folder, name) for name in sorted(names))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _passes(db: sqlite3.Connection) -> int:
    (count,) = db.execute("SELECT coalesce(max(id), 0) FROM passes").fetchone()
    return int(count)


def _known(db: sqlite3.Connection) -> Checksums:
    rows = db.execute("SELECT path, size, mtime_ns, sha256 FROM files")
    return {Entry(Path(path), size, mtime_ns): sha256 for path, size, mtime_ns, sha256 in rows}


def _record(db: sqlite3.Connection, known: Checksums, found: Checksums) -> int:
    """The new state, the changes that led to it and the end of the pass, in one transaction."""
    before = {str(entry.path): sha256 for entry, sha256 in known.items()}
    after = {str(entry.path): sha256 for entry, sha256 in found.items()}
    changes = [(path, "added") for path in after.keys() - before.keys()]
    changes += [(path, "removed") for path in before.keys() - after.keys()]
    changes += [(p, "changed") for p in after.keys() & before.keys() if after[p] != before[p]]
    rows = [(str(e.path), e.size, e.mtime_ns, sha256) for e, sha256 in found.items()]
    now = time.time()
    with db:
        db.execute("DELETE FROM files")
        db.executemany("INSERT INTO files VALUES (?, ?, ?, ?)", rows)
        db.executemany(
            "INSERT INTO changes (seen_at, path, what) VALUES (?, ?, ?)",
            [(now, path, what) for path, what in sorted(changes)],
        )
        db.execute(
            "DELETE FROM changes WHERE id <= (SELECT max(id) FROM changes) - ?", (KEEP_CHANGES,)
        )
        db.execute("INSERT INTO passes (finished_at) VALUES (?)", (now,))
        db.execute("DELETE FROM passes WHERE id < (SELECT max(id) FROM passes)")
    return len(changes)
