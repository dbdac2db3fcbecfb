"""Installed libraries of versions that are not supported, by nothing but their metadata."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from supervisor.installed import SUPPORTED, numbers
from tools.matrix.__main__ import CELERYS, HEART, Row

ROOT = Path(__file__).parents[2]


def run_beside(
    directory: Path, distribution: str, version: str, *command: str, needs: str = ""
) -> tuple[int, str]:
    """The command's exit code and errors where the distribution is found in that version.

    needs: what it needs for Redis.
    """
    info = directory / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        + (f'Requires-Dist: {needs}; extra == "redis"\n' if needs else "")
    )
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("distribution", "version", "command"),
    [
        ("celery", "5.3.6", ("supervisor", "jobs")),
        ("celery", "5.8.0rc1", ("celery", "-A", "examples.app", "worker")),
        ("celery-redbeat", "2.2.0", ("celery", "-A", "examples.app", "beat")),
        ("redis", "4.6.0", ("supervisor", "jobs")),
    ],
)
def test_an_unsupported_version_is_refused_in_one_sentence(
    tmp_path: Path, distribution: str, version: str, command: tuple[str, ...]
) -> None:
    code, errors = run_beside(tmp_path, distribution, version, *command)
    assert (code, errors) == (
        1,
        f"celery-beat-supervisor does not work with {distribution} {version}: install a version"
        f" that it works with, pip install '{distribution}{SUPPORTED[distribution]}'"
        " (docs/reference/compatibility.md)\n",
    )


@pytest.mark.parametrize(
    ("distribution", "version", "needs", "words"),
    [
        ("redis", "5.3.1", "", r"redis [\d.]+ or later, and redis 5.3.1 is"),
        ("kombu", "5.7.0", "absent", "absent, and none is"),
        ("kombu", "5.7.0", "redis (>=99.1,<100)", r"redis 99.1 or later, and redis [\d.]+ is"),
    ],
)
def test_versions_that_do_not_go_together_are_refused(
    tmp_path: Path, distribution: str, version: str, needs: str, words: str
) -> None:
    command = ("celery", "-A", "examples.app", "supervisor", "adopt", "--dry-run")
    code, errors = run_beside(tmp_path, distribution, version, *command, needs=needs)
    expected = (
        rf"kombu [\d.]+ needs {words} installed: install versions that go together, pip install"
        r" 'celery\[redis\]==[\d.]+' 'kombu\[redis\]' \(docs/reference/compatibility.md\)\n"
    )
    assert code == 1
    assert re.fullmatch(expected, errors), errors


def test_the_heart_of_the_tests_is_there() -> None:
    assert [path for path in HEART if not (ROOT / path).is_file()] == []


def test_the_oldest_supported_versions_are_those_that_the_heart_runs_with() -> None:
    pins = Row(CELERYS[0], Path("python")).pinned()
    oldest = {name: numbers(text.split(",")[0]) for name, text in SUPPORTED.items()}
    assert {name: numbers(pins[name])[: len(oldest[name])] for name in SUPPORTED} == oldest


def test_supported_versions_are_those_that_an_installation_asks_for() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    parts = [re.split(r"(?=[<>])", name.replace("[redis]", ""), maxsplit=1) for name in asked]
    assert {name: versions for name, versions in parts if name in SUPPORTED} == SUPPORTED
