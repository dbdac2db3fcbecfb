"""docs/internals/benchmarks.md and its picture, made from the figures in benchmarks.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tools.bench.rows import Row, measured

HERE = Path(__file__).parent

#: Pixels for a bar that is as long as it is to be; one ten times as long has twice that.
REACHED = 150
LONGEST = 3 * REACHED


def write(docs: Path, figures: Mapping[str, Any]) -> None:
    templates = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    figures = dict(sorted(figures.items()))
    rows = measured(figures)
    context = {"rows": rows, "figures": figures, "number": number, "length": length}
    for name in ("benchmarks.md", "benchmarks.svg"):
        (docs / name).write_text(templates.get_template(f"{name}.j2").render(context))


def length(row: Row, figures: Mapping[str, float]) -> float:
    """Of a row's bar: the decimal logarithm of how far it is ahead of, or behind, its target."""
    return max(6.0, min(LONGEST, REACHED * (1 + math.log10(row.lead(figures)))))


def number(value: float) -> str:
    """Three digits that mean something."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
