"""The full-text index of the documents: a table of SQLite's FTS5, replaced as a whole.

Who searches while it is built, or after a kill in the middle of that, finds the one before.

    python -m examples.full_text lease worker
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from examples.storage import database

SCHEMA = """
CREATE VIRTUAL TABLE IF NOT EXISTS documents USING fts5(path UNINDEXED, words);
CREATE VIRTUAL TABLE IF NOT EXISTS document_words USING fts5vocab(documents, row);
"""


@dataclass(frozen=True, slots=True)
class Match:
    """A document that has all the words that were looked for, and where."""

    path: str
    snippet: str


def replace_index(documents: Sequence[tuple[str, str]]) -> None:
    """Paths and their words, in one transaction."""
    with _index() as db, db:
        db.execute("DELETE FROM documents")
        db.executemany("INSERT INTO documents (path, words) VALUES (?, ?)", documents)


def most_frequent(count: int = 10, shortest: int = 6) -> dict[str, int]:
    """The words that stand in the documents most often, but for short ones: the, and, for."""
    with _index() as db:
        rows = db.execute(
            "SELECT term, cnt FROM document_words WHERE length(term) >= ?"
            " ORDER BY cnt DESC, term LIMIT ?",
            (shortest, count),
        )
        return dict(rows.fetchall())


def search(text: str, limit: int = 5) -> list[Match]:
    """The best matches first."""
    # Quoted, so that what FTS5 takes for its operators are words too.
    words = " ".join('"{}"'.format(word.replace('"', '""')) for word in text.split() or [""])
    with _index() as db:
        rows = db.execute(
            "SELECT path, snippet(documents, 1, '[', ']', '...', 12) FROM documents"
            " WHERE documents MATCH ? ORDER BY rank LIMIT ?",
            (words, limit),
        )
        return [Match(*row) for row in rows]


@contextmanager
def _index() -> Iterator[sqlite3.Connection]:
    with database() as db:
        db.executescript(SCHEMA)
        yield db


def main(arguments: Sequence[str]) -> int:
    """Prints what is found; 0: something, 1: nothing, 2: nothing was asked."""
    out = sys.stdout.write
    if not arguments:
        out("usage: python -m examples.full_text WORD...\n")
        return 2
    matches = search(" ".join(arguments))
    for match in matches:
        out(f"{match.path}: {match.snippet}\n")
    return 0 if matches else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
