"""What the README and the docs say exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.catalog.schedule_files import load
from supervisor.cli import VERBS
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


def verbs() -> set[str]:
    """Those of the command line; `manage.py supervisor` has some of its own."""
    lines = (line.partition("#")[0] for page in PAGES for line in code(page))
    return {verb for line in lines if "manage.py" not in line for verb in COMMAND.findall(line)}


def targets(*pages: Path) -> set[str]:
    lines = (line for page in pages for line in code(page))
    found = (re.match(r"(?:\$ )?make ((?:-C \S+ )?[\w-]+)", line) for line in lines)
    return {m[1] for m in found if m}


def test_the_verbs_that_are_named_are_the_verbs_that_exist() -> None:
    assert verbs() == set(VERBS)


def test_a_make_target_that_is_named_exists() -> None:
    make = shutil.which("make")
    assert make, "make is needed"
    for target in targets(*PAGES):
        dry_run = [make, "--dry-run", *target.split()]
        done = subprocess.run(dry_run, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"make {target}: {done.stderr}"


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", README.read_text(), re.S))
def test_a_schedule_file_in_the_readme_loads(block: str, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text(block)
    assert load(tmp_path / "schedules.yaml").specs


def test_the_table_of_overlap_policies_is_the_set_of_policies() -> None:
    page = (DOCS / "reference" / "schedule-file.md").read_text()
    (table,) = re.findall(r"^\| `overlap` \| a run.*\n\|-.*\n((?:\|.*\n)+)", page, re.M)
    named = re.findall(r"^\| `(\w+)`", table, re.M)
    assert sorted(named) == sorted(policy.value for policy in OverlapPolicy)


def test_links_inside_the_project_lead_somewhere() -> None:
    link = re.compile(r"(?:\]\(|src(?:set)?=\")(?!https?:|#)([^)#\s\"]+)")
    found = ((page, place) for page in PAGES for place in link.findall(page.read_text()))
    assert [(page, place) for page, place in found if not (page.parent / place).exists()] == []


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = (DOCS / "README.md").read_text()
    named = [str(page.relative_to(DOCS)) for page in PAGES[1:]]
    assert [page for page in named if f"({page})" not in index] == ["README.md"]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_each_stop_of_a_tick_names_the_next_one_as_the_page_does() -> None:
    page = (DOCS / "internals" / "walkthrough.md").read_text()
    stops = re.findall(r"^\d\. \*\*\[([\w/]+\.(?:py|lua))\]\(\.\./\.\./supervisor/\1\)", page, re.M)
    assert len(stops) == 6
    for number, (stop, following) in enumerate(zip(stops, [*stops[1:], None], strict=True), 1):
        path = f"A tick's path, step {number} of 6." + (f" Next: {following}." if following else "")
        assert path in (ROOT / "supervisor" / stop).read_text().replace("\n-- ", "\n").splitlines()
