"""What the README and the docs say exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli import MODULES, main
from supervisor.files.schedule_files import load
from supervisor.job.policies import OverlapPolicy

ROOT = Path(__file__).parents[1]

README = ROOT / "README.md"

DOCS = ROOT / "docs"

PAGES = [README, *sorted(DOCS.rglob("*.md"))]

#: `supervisor jobs`, `supervisor -A proj check`, `celery -A proj supervisor check`
COMMAND = re.compile(
    r"(?<![\w/.-])(?<!from )(?<!-n )supervisor(?: -A [\w.]+| --redis-url \S+)* ([a-z][a-z-]*)"
)


def code(page: Path) -> Iterator[str]:
    """The lines of blocks of commands, and what stands between backticks."""
    text = page.read_text()
    for block in re.findall(r"^```(?:sh|console|bash)?\n(.*?)^```$", text, re.S | re.M):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def verbs() -> list[tuple[str, str]]:
    """Those of the command line; `manage.py supervisor` has some of its own."""
    lines = ((page, line.partition("#")[0]) for page in PAGES for line in code(page))
    lines = ((page, line) for page, line in lines if "manage.py" not in line)
    return sorted({(page.name, verb) for page, line in lines for verb in COMMAND.findall(line)})


def targets() -> list[tuple[str, str]]:
    lines = ((page, line) for page in PAGES for line in code(page))
    found = {
        (page.name, m[1])
        for page, line in lines
        if (m := re.match(r"(?:\$ )?make ((?:-C \S+ )?[\w-]+)", line))
    }
    return sorted(found)


@pytest.mark.parametrize(("page", "verb"), verbs())
def test_a_verb_that_is_named_exists(page: str, verb: str) -> None:
    result = CliRunner().invoke(main, [verb, "--help"])
    assert result.exit_code == 0, f"{page}: supervisor {verb}: {result.output}"


def test_every_verb_is_explained_somewhere() -> None:
    assert {verb for of_module in MODULES.values() for verb in of_module} - {
        verb for _, verb in verbs()
    } == set()


@pytest.mark.parametrize(("page", "target"), targets())
def test_a_make_target_that_is_named_exists(page: str, target: str) -> None:
    make = shutil.which("make")
    assert make, "make is needed"
    dry_run = [make, "--dry-run", *target.split()]
    done = subprocess.run(dry_run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}: make {target}: {done.stderr}"


def test_the_readme_says_how_to_run_and_test() -> None:
    assert {("README.md", "up"), ("README.md", "test")} <= set(targets())


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", README.read_text(), re.S))
def test_a_schedule_file_in_the_readme_loads(block: str, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text(block)
    assert load(tmp_path / "schedules.yaml").specs


def test_the_readme_shows_a_schedule_file() -> None:
    assert re.search(r"^```yaml\n", README.read_text(), re.M)


def test_the_table_of_overlap_policies_is_the_set_of_policies() -> None:
    (table,) = re.findall(r"^\| `overlap` \|.*\n\|-.*\n((?:\|.*\n)+)", README.read_text(), re.M)
    named = re.findall(r"^\| `(\w+)`", table, re.M)
    assert sorted(named) == sorted(policy.value for policy in OverlapPolicy)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    links = re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:|#)([^)#\s\"]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = (DOCS / "README.md").read_text()
    named = [str(page.relative_to(DOCS)) for page in PAGES[1:]]
    assert [page for page in named if f"({page})" not in index] == ["README.md"]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120
