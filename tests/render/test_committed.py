"""What lies in deploy/ is what `make render` would write, and `--check` says when it is not."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli import main
from supervisor.deploy.directory import rendered_before
from tests.render.jobs import ROOT


def commands() -> dict[str, list[str]]:
    """Of `make render`, by target; without the program."""
    done = subprocess.run(
        ["make", "--dry-run", "render"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [shlex.split(line)[1:] for line in done.stdout.splitlines() if " render " in line]
    return {line[line.index("render") + 1]: line for line in lines}


def run(arguments: list[str]) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("target", commands())
def test_what_is_committed_is_what_is_rendered(target: str) -> None:
    result = run([*commands()[target], "--check"])
    assert result.exit_code == 0, f"{result.output}\nmake render"


def output_of(target: str) -> Path:
    command = commands()[target]
    return ROOT / command[command.index("--output") + 1]


@pytest.mark.parametrize("target", commands())
def test_check_tells_what_differs_and_writes_nothing(target: str, tmp_path: Path) -> None:
    output = tmp_path / "deploy" / target
    shutil.copytree(output_of(target), output)
    changed, missing = (output / path for path, _ in list(rendered_before(output, target))[:2])
    changed.write_text(f"{changed.read_text()}# edited\n")
    missing.unlink()
    result = run([*commands()[target], "--check", "--output", str(output)])
    assert result.exit_code == 1
    assert f"changed {changed.relative_to(output)}" in result.output
    assert f"added   {missing.relative_to(output)}" in result.output
    assert not missing.exists()


@pytest.mark.parametrize("target", commands())
def test_no_secret_and_no_address_of_redis_with_one_is_rendered(target: str) -> None:
    files = [path for path in output_of(target).rglob("*") if path.is_file()]
    assert files
    for path in files:
        for line in path.read_text().splitlines():
            if "redis://" in line:
                assert "PASSWORD" in line


def test_an_environment_is_one_line_with_a_name(tmp_path: Path) -> None:
    command = [*commands()["systemd"], "--output", str(tmp_path), "--env"]
    for wrong in ("A", "1A=x", "A=x\ny"):
        assert run([*command, wrong]).exit_code == 2


def test_without_an_app_nothing_is_rendered(tmp_path: Path) -> None:
    result = run(["render", "systemd", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "name the Celery app" in result.output
