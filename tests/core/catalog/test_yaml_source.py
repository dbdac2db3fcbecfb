"""The YAML of schedule files: one meaning for each value, and a line for each mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from supervisor.catalog import yaml_source
from supervisor.catalog.schedule_files import load
from supervisor.catalog.yaml_source import plain_value
from tests.acceptance import warm
from tests.core.catalog.problems import problems_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x1F", 31),
        ("0o17", 15),
        ("-5", -5),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("", None),
        ("~", None),
        ("nothing", "nothing"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_an_unquoted_value_has_one_meaning(text: str, value: object) -> None:
    read = plain_value(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('jobs:\n  a:\n    task: "t\n', 4, "not valid YAML: while scanning a quoted scalar"),
        ("jobs:\n  a: b: c\n", 2, "not valid YAML: mapping values are not allowed"),
        ("jobs:\n  a: \x07\n", 2, "not valid YAML: a character that YAML does not allow: U+0007"),
        ("jobs:\n  a: &x {task: t, every: 1m}\n", 2, "job 'a': anchor &x is not allowed"),
        ("jobs:\n  a: {task: t, every: 1m}\n  b: *x\n", 3, "job 'b': alias *x is not allowed"),
        ("jobs:\n  a: !!map {task: t, every: 1m}\n", 2, "tag tag:yaml.org,2002:map is not allowed"),
        (
            "jobs:\n  a:\n    task: !!python/object/apply:os.system [ls]\n    every: 1m",
            3,
            "job 'a': tag tag:yaml.org,2002:python/object/apply:os.system is not allowed",
        ),
        ("jobs: {}\n---\njobs: {}\n", 2, "a second document begins here"),
        ("jobs:\n  a: {task: t, every: 1m, 5: x}\n", 2, "job 'a': key 5 is not text"),
        ("jobs:\n  a: {task: t, every: 1m}\n  7: {}\n", 3, 'key 7 is not text (quote it: "7")'),
        ("jobs:\n  a: {task: t, every: 1m}\n  ? [b]\n  : {}\n", 3, "key ['b'] is not text"),
        (
            "jobs:\n  a: {task: t, every: 1m}\n  a: {task: u}\n",
            3,
            "job 'a': 'a' is given twice (first on line 2)",
        ),
        (
            "jobs:\n  a:\n    task: t\n    every: 1m\n    task: u\n",
            5,
            "job 'a': 'task' is given twice (first on line 3)",
        ),
        (
            "jobs:\n  a:\n    task: t\n    cron: */5 * * * *\n",
            4,
            '(quote the expression: cron: "*/5 * * * *")',
        ),
        ("jobs:\n  a:\n    task: t\n    cron: @daily\n", 4, 'cron: "@daily"'),
        ("jobs:\n\ta: {}\n", 2, "indent with spaces, not with tabs"),
        ("", 1, "the file is empty (for no jobs: jobs: {})"),
        ("# nothing\n", 1, "the file is empty"),
        ("\n- a\n", 2, "the file is not a mapping"),
        ("jobs:\n", 1, "'jobs' is empty (for none: jobs: {})"),
        ("jobs: []\n", 1, "'jobs' is not a mapping"),
        ("defaults: {}\n", 1, "'jobs' is missing"),
        ("jobs: {}\njob: {}\n", 2, "unknown key 'job' (did you mean 'jobs'?)"),
        ("jobs:\n  a: 5\n", 2, "job 'a': is not a mapping"),
        ("jobs:\n  a:\n", 2, "job 'a': is not a mapping"),
    ],
)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml_source.LOADER])
def test_a_fault_of_the_yaml_is_reported_once_at_its_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, loader: object, text: str, line: int, what: str
) -> None:
    monkeypatch.setattr(yaml_source, "LOADER", loader)
    file.write_text(text)
    (problem,) = problems_of(file)
    assert (problem.line, problem.file) == (line, str(file))
    assert what in str(problem)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "? [a]\n: "])
def test_no_depth_of_nesting_brings_the_process_down(file: Path, opening: str) -> None:
    file.write_text(opening * 100_000)
    program = "import pathlib, sys; from supervisor.catalog.schedule_files import load; "
    program += "load(pathlib.Path(sys.argv[1]))"
    done = warm.run(["-c", program, str(file)], file.parent, os.environ)
    assert done.returncode == 1, "a signal would be negative"
    assert "ScheduleFilesInvalid" in done.stderr


def test_twenty_levels_are_the_deepest(file: Path) -> None:
    def write(levels: int) -> None:
        deep = "[" * levels + "]" * levels
        file.write_text(f"jobs: {{a: {{task: t, every: 1m, args: {deep}}}}}")

    write(17)
    load(file)
    write(18)
    [problem] = problems_of(file)
    assert (problem.line, problem.what) == (1, "nested deeper than 20 levels")
