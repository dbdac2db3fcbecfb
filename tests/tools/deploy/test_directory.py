"""What render writes into a directory, and what of it is committed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli import main
from supervisor.deploy.directory import Difference, InTheWay, difference, rendered_before, write
from supervisor.errors import SupervisorError
from tests.tools.deploy.jobs import ROOT

# What rendering does to a directory that is not empty


def test_files_are_added_changed_and_removed_once(tmp_path: Path) -> None:
    write(tmp_path, "systemd", {"a": "old\n", "gone.d/b": "old\n"})
    files = {"a": "new\n", "c": "old\n"}
    expected = Difference(added=("c",), changed=("a",), removed=("gone.d/b",))
    assert difference(tmp_path, "systemd", files) == expected
    assert write(tmp_path, "systemd", files) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
    assert (tmp_path / "a").read_text().splitlines()[1:] == ["new"]
    assert not write(tmp_path, "systemd", files)


def test_foreign_files_and_their_folders_stay(tmp_path: Path) -> None:
    write(tmp_path, "systemd", {"x.d/a": "old\n"})
    (tmp_path / "x.d" / "theirs").write_text("theirs\n")
    write(tmp_path, "compose", {"other": "theirs\n"})
    write(tmp_path, "systemd", {})
    assert (tmp_path / "x.d" / "theirs").read_text() == "theirs\n"
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "x.d" / "a").exists()


def test_a_foreign_file_in_the_way_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("theirs\n")
    with pytest.raises(InTheWay):
        write(tmp_path, "systemd", {"a": "old\n", "b": "old\n"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs\n")
    with pytest.raises(SupervisorError, match="cannot be written: Not a directory"):
        write(tmp_path / "file" / "deploy", "systemd", {"a": "ours\n"})


def test_a_link_in_the_directory_is_not_overwritten(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("old\n")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to(theirs)
    with pytest.raises(InTheWay):
        write(out, "systemd", {"a": "new\n"})
    assert theirs.read_text() == "old\n"


def test_a_copy_of_a_rendered_file_is_its_owners(tmp_path: Path) -> None:
    write(tmp_path, "helm", {"overlays/ours/a": "old\n"})
    shutil.copytree(tmp_path / "overlays" / "ours", tmp_path / "overlays" / "theirs")
    write(tmp_path, "helm", {})
    assert [path.name for path in (tmp_path / "overlays").iterdir()] == ["theirs"]


# What lies in deploy/systemd and deploy/compose is what `make render` would write, and `--check`
# says when it is not


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
        if path.parent.name == "__pycache__":  # of the site's hooks, which lie beside them
            continue
        for line in path.read_text().splitlines():
            if "redis://" in line:
                assert "PASSWORD" in line


def test_an_environment_is_one_line_with_a_name(tmp_path: Path) -> None:
    command = [*commands()["systemd"], "--output", str(tmp_path), "--env"]
    for wrong in ("A", "1A=x", "A=x\ny"):
        assert run([*command, wrong]).exit_code == 2


@pytest.mark.parametrize(
    ("target", "option", "wrong"),
    [
        ("systemd", "--directory", "opt/supervisor"),
        ("systemd", "--directory", "/opt\n/supervisor"),
        ("systemd", "--user", "my user"),
        ("systemd", "--valkey", "valkey-server"),
    ],
)
def test_what_the_target_would_refuse_is_refused(
    target: str, option: str, wrong: str, tmp_path: Path
) -> None:
    result = run([*commands()[target], "--output", str(tmp_path), option, wrong])
    assert result.exit_code == 2
    assert f"{wrong!r} is not" in result.output
    assert not [*tmp_path.iterdir()]


def test_without_an_app_nothing_is_rendered(tmp_path: Path) -> None:
    result = run(["render", "systemd", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "name the Celery app" in result.output
