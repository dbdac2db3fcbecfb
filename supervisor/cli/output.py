"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from supervisor.display.tables import Columns, lines


class Failure(click.ClickException):
    """One message on standard error, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # as click itself reads it


def print_json(value: Any) -> None:
    """In the letters of the text; what has no picture on a terminal is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def print_table(columns: Columns, rows: Iterable[Sequence[str]]) -> None:
    """A table as wide as the terminal; elsewhere each row is one line. No cell is ever cut."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, rows, width):
        click.echo(line)


def table_lines(
    columns: Columns, rows: Iterable[Sequence[str]], width: int | None = None
) -> list[str]:
    return lines(columns, [tuple(map(printable, row)) for row in rows], width)


def printable(text: str) -> str:
    """Without what would move the cursor: reasons are what a job's exception said."""
    return "".join(c if c.isprintable() else " " for c in text)
