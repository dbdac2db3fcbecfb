"""`supervisor init`: a project that runs, or a first schedule file; nothing is overwritten."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.catalog.schedule_files import load
from supervisor.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def supervisor(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_in_an_empty_folder_it_writes_a_project_that_runs(here: Path) -> None:
    result = supervisor("init")
    assert (result.exit_code, result.output.splitlines()[0].split()) == (
        0,
        ["next", "supervisor", "-A", "proj", "up"],
    )
    check = [sys.executable, "-m", "supervisor", "-A", "proj", "check"]
    subprocess.run(check, cwd=here, check=True)
    [spec] = load(here / "schedules").specs.values()
    assert (spec.paused, spec.task) == (False, "proj.hello")


def test_any_folder_is_written_as_python_reads_it(here: Path) -> None:
    assert supervisor("init", 'we"ird').exit_code == 0
    assert "schedules='we\"ird'" in ast.unparse(ast.parse((here / "proj.py").read_text()))


@pytest.mark.parametrize("mine", ["manage.py", "app/__init__.py", "pyproject.toml"])
def test_beside_python_it_writes_a_paused_job_alone(here: Path, mine: str) -> None:
    (here / mine).parent.mkdir(exist_ok=True)
    (here / mine).touch()
    result = supervisor("init")
    assert (result.exit_code, "wrote  schedules/example.yaml" in result.output) == (0, True)
    assert supervisor("check").exit_code == 0
    assert Path(result.output.splitlines()[-1].split()[-1]).is_file()
    [spec] = load(here / "schedules").specs.values()
    assert spec.paused
    assert not (here / "proj.py").exists()


def test_with_an_app_it_names_a_task_of_it(here: Path) -> None:
    result = supervisor("-A", "examples.app", "init", "jobs")
    assert "supervisor -A examples.app check" in result.output
    assert supervisor("-A", "examples.app", "check", "jobs").exit_code == 0


@pytest.mark.parametrize(
    ("mine", "asked", "code", "said"),
    [
        ("schedules/example.yaml", "schedules", 4, "exists already"),
        ("schedules", "schedules", 4, "schedules exists already"),
        ("file", "file/schedules", 1, "cannot be written: Not a directory"),
    ],
)
def test_what_is_there_is_left_as_it_is(
    here: Path, mine: str, asked: str, code: int, said: str
) -> None:
    (here / mine).parent.mkdir(exist_ok=True)
    (here / mine).write_text("mine")
    result = supervisor("init", asked)
    assert (result.exit_code, said in result.output) == (code, True)
    assert (here / mine).read_text() == "mine"
