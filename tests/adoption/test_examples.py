"""Each example does what its README says: started, asked, killed, and shown by the page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from playwright.sync_api import expect

from supervisor.job.run import Run
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.test_tutorial import BLOCK, Reader
from tests.ports import free_port
from tests.processes import started
from tests.programs import needed
from tests.tools.web.browser import chromium
from tests.waiting import scaled, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HOW_TO = ROOT / "docs" / "how-to"

IGNORED = shutil.ignore_patterns(".venv", ".supervisor", "__pycache__", "db.sqlite3")


class Visitor(Reader):
    """Who follows the README of an example, with this environment's programs."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports = {"9809": str(free_port()), "8000": str(free_port())}
        self.has_killed = directory / "has-killed"

    def follow(self, kind: str, title: str, text: str) -> None:
        if text == "make up\n":
            self.make_up()
        else:
            super().follow(kind, title, text)

    def run(self, command: str, expected: set[str]) -> None:
        if command.startswith("kill"):
            self.has_killed.touch()
        super().run(command, expected)

    def make_up(self) -> None:
        """Returns once the page has the jobs; the site may be later, and is asked again."""
        words = ["make", "up", f"WEB_PORT={self.ports['8000']}", f"PAGE_PORT={self.ports['9809']}"]
        log = self.directory / "up.log"
        process = started(words, self.directory, log, self.environ, start_new_session=True)
        self.processes.append(process)
        files = [yaml.safe_load(file.read_text()) for file in self.directory.glob("schedules/*")]
        jobs = [name for file in files for name in file["jobs"]]
        wait_until(lambda: process.poll() is not None or all(map(self.has_job, jobs)), 30)
        assert process.poll() is None, log.read_text()

    def has_job(self, name: str) -> bool:
        return self.has_page(f"jobs/{name}")

    def has_page(self, path: str = "", text: str = "") -> bool:
        """Whether there is one that says that. A busy machine may take longer than pages have."""
        url = f"http://127.0.0.1:{self.ports['9809']}/{path}"
        try:
            answer = httpx.get(url, timeout=scaled(5))
        except httpx.TransportError:
            return False
        return answer.is_success and text in answer.text

    def sees(self, runs: Iterable[Run]) -> None:
        """In a browser: each run has succeeded, although a process was killed."""
        with chromium() as browser:
            page = browser.new_page()
            for run in runs:
                page.goto(f"http://127.0.0.1:{self.ports['9809']}/runs/{run.id}")
                expect(page.get_by_role("heading", level=1)).to_have_text(run.id)
                expect(page.locator("main").get_by_text("succeeded").first).to_be_visible()

    def stop(self) -> None:
        """Ctrl-C, which a terminal sends to all that `make` has started."""
        for process in self.processes:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(scaled(20))


#: What a how-to page quotes, by its path below examples/; in a list it is indented.
QUOTE = re.compile(
    r'^( *)```\w+ title="((?:django|fastapi|flask)/[^"]+)"\n(.*?)^\1```$', re.S | re.M
)


@pytest.mark.parametrize("page", ["django", "web-apps"])
def test_a_page_quotes_the_example_as_it_is(page: str) -> None:
    quotes = QUOTE.findall((HOW_TO / f"{page}.md").read_text())
    assert quotes
    for _, path, text in quotes:
        assert textwrap.dedent(text) in (EXAMPLES / path).read_text(), path


@pytest.fixture
def visitor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Visitor]:
    directory = tmp_path / request.param
    shutil.copytree(EXAMPLES / request.param, directory, ignore=IGNORED)
    (directory / ".venv").symlink_to(sys.prefix)  # what its requirements.txt names
    someone = Visitor(directory)
    # The work has to be there still when a busy machine has come to the kill, and then to end soon.
    held = f"sleep(0.2 if __import__('os').path.exists({str(someone.has_killed)!r}) else 200)"
    for file in directory.rglob("*.py"):
        file.write_text(re.sub(r"sleep\(\d+\)", held, file.read_text()))
    for file in directory.glob("schedules/*"):
        file.write_text(re.sub(r"every: \w+", "every: 7d", file.read_text()))
    yield someone
    someone.stop()


@pytest.mark.parametrize("visitor", ["plain", "fastapi", "flask", "django"], indirect=True)
def test_an_example_does_what_its_readme_says(visitor: Visitor) -> None:
    pytest.importorskip("fastapi")
    for kind, title, text in BLOCK.findall((visitor.directory / "README.md").read_text()):
        visitor.follow(kind, title, text)
    assert visitor.pid
    ledger = Ledger.open(Settings.from_environ({}, visitor.directory))
    runs = [run for name in ledger.specs() for run in ledger.history(name)]
    for run in runs:
        wait_until(lambda run=run: visitor.has_page(f"jobs/{run.job}", run.id))  # type: ignore[misc]
    needed("chromium")
    visitor.sees(runs)
