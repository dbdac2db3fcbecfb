"""docs/benchmarks.md says what docs/benchmarks.json does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench import page
from tests.bench.rows import ROWS, Row, measured

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_and_its_picture_are_made_of_the_figures(tmp_path: Path) -> None:
    page.write(tmp_path, json.loads((DOCS / "benchmarks.json").read_text()))
    for name in ("benchmarks.md", "benchmarks.svg"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text()


def test_a_figure_that_falls_short_is_said_to_be_missed(tmp_path: Path) -> None:
    figures = json.loads((DOCS / "benchmarks.json").read_text())
    row = measured(figures)[0]
    worse = {**figures, row.figure: row.target * (0.9 if row.at_least else 1.1)}
    page.write(tmp_path, worse)
    text = (tmp_path / "benchmarks.md").read_text()
    assert f"- {row.what}: " in text.partition("## What falls short")[2]


def test_a_target_that_is_met_exactly_is_reached() -> None:
    assert all(row.is_reached({row.figure: row.target}) for row in ROWS)
    assert not Row("", "a", 2, at_least=True).is_reached({"a": 1.9})
