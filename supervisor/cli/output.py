"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_json(value: Any) -> None:
    """In the letters of the text; what has no picture on a terminal is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table that fits the terminal; elsewhere aligned text with nothing cut off."""
    rows = [tuple(map(printable, row)) for row in rows]
    if sys.stdout.isatty():
        Console(highlight=False, markup=False).print(table_of(columns, rows))
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for cells in (tuple(columns), *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(line.rstrip())


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def printable(text: str) -> str:
    """Without what would move the cursor: reasons are what a job's exception said."""
    return "".join(c if c.isprintable() else " " for c in text)
