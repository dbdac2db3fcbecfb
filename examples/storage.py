"""Where the examples keep what they write; a killed process leaves it readable."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    id INTEGER PRIMARY KEY,
    sampled_at REAL NOT NULL,  -- seconds since the epoch
    load REAL NOT NULL,
    cpu REAL,                  -- share of all cores, NULL where there is no /proc
    memory REAL                -- share in use, NULL where there is no /proc
);
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    sha256 TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS changes (
    id INTEGER PRIMARY KEY,
    seen_at REAL NOT NULL,
    path TEXT NOT NULL,
    what TEXT NOT NULL         -- added, changed, removed
);
CREATE TABLE IF NOT EXISTS passes (id INTEGER PRIMARY KEY, finished_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS extracts (
    run TEXT NOT NULL,
    path TEXT NOT NULL,
    extracted_at REAL NOT NULL,
    words TEXT NOT NULL,       -- of one document, in their order
    PRIMARY KEY (run, path)
);
"""


def directory() -> Path:
    """SUPERVISOR_EXAMPLES_DIR, else `.supervisor` where the worker was started."""
    path = Path(os.environ.get("SUPERVISOR_EXAMPLES_DIR") or ".supervisor")
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A connection; `with db:` makes one transaction of what belongs together."""
    path = directory() / "examples.sqlite3"
    with closing(sqlite3.connect(path, timeout=10)) as db:
        # Readers and the one writer do not wait for each other.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(SCHEMA)
        yield db


def write_atomically(path: Path, content: bytes) -> None:
    """Readers find the old content or the new, never a part of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
