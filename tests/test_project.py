from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import package

ROOT = Path(__file__).parents[1]

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    """Names of distributions are compared without case, and - _ . are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted() -> list[str]:
    project = PROJECT["project"]
    optional = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [*project["dependencies"], *optional, *PROJECT["dependency-groups"]["dev"]]


def pinned() -> set[str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return {
        normal(match[1]) for line in lines if (match := re.match(r"([\w.-]+)(?:\[.*\])?==", line))
    }


def test_every_dependency_is_pinned() -> None:
    names = {normal(re.match(r"[\w.-]+", line)[0]) for line in wanted()}  # type: ignore[index]
    assert names - pinned() == set()


def test_every_pin_has_hashes_and_none_names_a_host() -> None:
    text = (ROOT / "requirements.txt").read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert re.findall(r"://|--index-url|--extra-index-url|--find-links|@ file", text) == []


def test_what_builds_the_package_is_pinned_too() -> None:
    names = {normal(re.match(r"[\w.-]+", line)[0]) for line in PROJECT["build-system"]["requires"]}  # type: ignore[index]
    assert names <= pinned()


def test_every_page_of_the_documentation_is_in_the_menu_of_the_site() -> None:
    docs = ROOT / "docs"
    menu = (ROOT / "deploy" / "site" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"- (\S+\.md)$", menu, re.M)
    assert sorted(named) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


def test_the_changelog_has_the_version() -> None:
    version = PROJECT["project"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_a_checkout_is_releasable_with_its_tag_date_and_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "ROOT", tmp_path)
    written, changes = tmp_path / "pyproject.toml", tmp_path / "CHANGELOG.md"
    about = '[project]\nversion = "1.2.3"\n[project.urls]\nHomepage = "https://{}"\n'
    written.write_text(about.format("celery-beat-supervisor.invalid"))
    changes.write_text("## 1.2.3 - unreleased\n")
    with pytest.raises(package.Wrong, match="has the version"):
        package.releasable("v1.2.4")
    with pytest.raises(package.Wrong, match="no real address"):
        package.releasable("v1.2.3")
    written.write_text(about.format("example.org"))
    with pytest.raises(package.Wrong, match="no date"):
        package.releasable("v1.2.3")
    changes.write_text("## 1.2.3 - 2027-01-02\n")
    package.releasable("v1.2.3")


def test_no_command_takes_a_name_of_supervisord() -> None:
    assert PROJECT["project"]["name"] == "celery-beat-supervisor"
    assert PROJECT["project"]["scripts"].keys() & {"supervisord", "supervisorctl"} == set()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package as it lies in an environment's site-packages."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(ROOT / "supervisor", tmp_path / "supervisor", ignore=ignored)


def import_from(directory: Path, module: str = "supervisor") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import supervisor, {module}; print(supervisor.__file__)"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["supervisord.py", "supervisorctl.py"])
def test_supervisord_in_our_folder_stops_the_import_and_says_what_to_do(
    copied: Path, name: str
) -> None:
    (copied / name).write_text("")
    done = import_from(copied.parent)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ImportError: ")
    assert name in error
    assert "Uninstall both, then install only 'celery-beat-supervisor'" in error


@pytest.mark.parametrize("module", ["supervisor.app", "supervisor.cli"])
def test_supervisord_installed_later_is_found_as_well(copied: Path, module: str) -> None:
    for name in ("supervisord.py", "__init__.py", "process.py"):
        (copied / name).write_text("")
    error = import_from(copied.parent, module).stderr.splitlines()[-1]
    assert "Uninstall both, then install only 'celery-beat-supervisor'" in error


def test_files_that_went_with_supervisord_are_missed(copied: Path) -> None:
    (copied / "__init__.py").unlink()
    command = [sys.executable, copied / "installed.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "`pip install --force-reinstall --no-deps celery-beat-supervisor`" in done.stderr


def test_the_package_alone_imports(copied: Path) -> None:
    done = import_from(copied.parent)
    assert done.stdout.strip() == str(copied / "__init__.py"), done.stderr
