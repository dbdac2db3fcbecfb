"""Rows of text -> the lines of a table for a screen of some width.

What fits is aligned text. What does not fit is made to, in this order:

1. Cells of columns that may fold are wrapped between words.
2. The last column, if it may fold, goes below its row.
3. The least important column is left out and the layout tried again; a last line names these.

No cell is ever cut, so that a name or the id of a run can be copied. A line that is still too long
is wrapped by the terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

GAP = 2
INDENT = "    "

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Columns:
    """names: the headers. folds: those whose cells may be wrapped. drops: those that may be left
    out, the least important first."""

    names: tuple[str, ...]
    folds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    @classmethod
    def named(cls, names: str, *, folds: str = "", drops: str = "") -> Columns:
        """Each a list of headers with commas between them."""
        return cls(*(tuple(filter(None, text.split(", "))) for text in (names, folds, drops)))


def lines(columns: Columns, rows: Iterable[Row], width: int | None = None) -> list[str]:
    """The header and the rows; without a `width` each is one line, however long."""
    rows = list(rows)
    if width is None:
        return list(aligned([columns.names, *rows]))
    left_out: list[str] = []
    found: list[str] = []
    for dropped in (*columns.drops, None):
        shown = [number for number, name in enumerate(columns.names) if name not in left_out]
        names = tuple(columns.names[number] for number in shown)
        cells = [[row[number] for number in shown] for row in rows]
        for attempt in (aligned, folded, hung):
            found = list(attempt([names, *cells], columns.folds, width))
            if all(cell_len(line) <= width for line in found):
                return [*found, *notes(left_out)]
        if dropped:
            left_out.append(dropped)
    return [*found, *notes(left_out)]


def notes(left_out: Sequence[str]) -> list[str]:
    return [f"(too narrow for: {', '.join(left_out)})"] if left_out else []


def aligned(rows: Sequence[Row], folds: Sequence[str] = (), width: int = 0) -> Iterator[str]:
    widths = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield joined(row, widths)


def folded(rows: Sequence[Row], folds: Sequence[str], width: int) -> Iterator[str]:
    """The columns that may fold share the width that the others leave."""
    natural = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
    least = [max(map(longest_word, cells)) for cells in zip(*rows, strict=True)]
    folding = [number for number, name in enumerate(rows[0]) if name in folds]
    fixed = sum(size for number, size in enumerate(natural) if number not in folding)
    left = width - fixed - GAP * (len(natural) - 1) - sum(least[number] for number in folding)
    widths = list(natural)
    for place, number in enumerate(folding):
        share = max(0, left) // (len(folding) - place)
        widths[number] = min(natural[number], least[number] + share)
        left -= widths[number] - least[number]
    for row in rows:
        cells = [
            wrapped(cell, widths[number]) if number in folding else [cell]
            for number, cell in enumerate(row)
        ]
        for line in range(max(map(len, cells))):
            yield joined([cell[line] if line < len(cell) else "" for cell in cells], widths)


def hung(rows: Sequence[Row], folds: Sequence[str], width: int) -> Iterator[str]:
    """The last column of each row stands below it."""
    if rows[0][-1] not in folds:
        yield from folded(rows, folds, width)
        return
    above = [row[:-1] for row in rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*above, strict=True)]
    for row in rows:
        yield joined(row[:-1], widths)
        if row[-1]:
            yield from (INDENT + line for line in wrapped(row[-1], width - len(INDENT)))


def joined(row: Row, widths: Sequence[int]) -> str:
    padded = (
        cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
    )
    return (" " * GAP).join(padded).rstrip()


def wrapped(cell: str, width: int) -> list[str]:
    within = max(1, width)
    return textwrap.wrap(cell, within, break_long_words=False, break_on_hyphens=False) or [""]


def longest_word(cell: str) -> int:
    return max(map(cell_len, cell.split()), default=0)
