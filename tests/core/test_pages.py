"""Pages of docs say what the code does."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from supervisor.app import GIVEN, supervise
from supervisor.job.policies import SkipReason
from supervisor.job.run import FAILURES, MISSED_REASONS, OPEN_STATES, RunState
from supervisor.sending.app_settings import NEEDED
from supervisor.settings import DEFAULT_PREFIX, DEFAULT_URL, PAGE_URL
from tools.bench import page
from tools.bench.rows import ROWS, Row, measured

# docs/reference/settings.md says what the code does

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text()
DJANGO = ROOT / "supervisor" / "features" / "django"
DJANGO_PAGE = (ROOT / "docs" / "how-to" / "django.md").read_text()
VARIABLE = re.compile(r"\bSUPERVISOR_[A-Z_]*[A-Z]\b")


def rows(first_column: str, page: str = PAGE) -> dict[str, str]:
    """Of the table with this heading: the second column by the first, without their marks."""
    table = re.search(rf"^ *\| {first_column} \|.*\n *\|-.*\n((?: *\|.*\n)+)", page, re.M)
    assert table, first_column
    lines = (line.strip().split(" | ") for line in table[1].splitlines())
    return {line[0].removeprefix("| ").strip("`"): line[1].strip("`") for line in lines}


def names_in(folder: Path) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    texts = [path.read_text() for path in files if "__pycache__" not in path.parts]
    return {name for text in texts for name in VARIABLE.findall(text)}


def test_every_variable_of_the_code_is_on_the_page_and_the_other_way_round() -> None:
    of_django = names_in(DJANGO) & set(rows("setting", DJANGO_PAGE)) - {PAGE_URL}
    assert names_in(ROOT / "supervisor") - of_django | {"SUPERVISOR_APP"} == set(rows("variable"))
    assert set(VARIABLE.findall(PAGE)) == set(rows("variable"))


def test_every_setting_of_django_is_on_its_page() -> None:
    assert names_in(DJANGO) == set(rows("setting", DJANGO_PAGE))


def test_every_parameter_of_supervise_is_on_the_page_with_its_default() -> None:
    parameters = inspect.signature(supervise).parameters
    assert rows("parameter") == {
        name: "required" if parameter.default is parameter.empty else repr(parameter.default)
        for name, parameter in parameters.items()
    }


def test_every_setting_that_supervise_gives_is_on_the_page() -> None:
    given = {**NEEDED, **GIVEN}
    assert rows("setting") == {name: str(value) for name, value in given.items()}


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    assert f"| `{DEFAULT_URL}` | `{DEFAULT_URL}` |" in PAGE
    assert re.search(rf"^\| `SUPERVISOR_PREFIX` \| all \| `{DEFAULT_PREFIX}` \|", PAGE, re.M)


# docs/internals/benchmarks.md says what docs/internals/benchmarks.json does

BENCHMARKS = ROOT / "docs" / "internals"


def test_the_page_and_its_picture_are_made_of_the_figures(tmp_path: Path) -> None:
    page.write(tmp_path, json.loads((BENCHMARKS / "benchmarks.json").read_text()))
    for name in ("benchmarks.md", "benchmarks.svg"):
        assert (tmp_path / name).read_text() == (BENCHMARKS / name).read_text()


def test_a_figure_that_falls_short_is_said_to_be_missed(tmp_path: Path) -> None:
    figures = json.loads((BENCHMARKS / "benchmarks.json").read_text())
    row = measured(figures)[0]
    worse = {**figures, row.figure: row.target * (0.9 if row.at_least else 1.1)}
    page.write(tmp_path, worse)
    text = (tmp_path / "benchmarks.md").read_text()
    assert f"- {row.what}: " in text.partition("## What falls short")[2]


def test_a_target_that_is_met_exactly_is_reached() -> None:
    assert all(row.is_reached({row.figure: row.target}) for row in ROWS)
    assert not Row("", "a", 2, at_least=True).is_reached({"a": 1.9})


# docs/reference/glossary.md says what the code does

GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text()


def test_the_glossary_has_every_state_outcome_and_reason() -> None:
    ended = {state.value: state in FAILURES for state in RunState if not state.is_open}
    assert set(rows("state", GLOSSARY)) == {state.value for state in OPEN_STATES}
    outcomes = re.findall(r"^\| `(\w+)` \| .+? \| ?(yes)? ?\|$", GLOSSARY, re.M)
    assert {name: bool(yes) for name, yes in outcomes} == ended
    skipped, missed = re.findall(r"^\| reason .*\n\|-.*\n((?:\|.*\n)+)", GLOSSARY, re.M)
    assert set(re.findall(r"^\| `(\w+)`", skipped, re.M)) == {reason.value for reason in SkipReason}
    assert set(re.findall(r"^\| `(\w+)`", missed, re.M)) == set(MISSED_REASONS)
