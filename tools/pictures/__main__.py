"""`make screenshots`: writes docs/pictures, taken of the examples while they run.

1. `supervisor up` runs the examples in a temporary folder, with two people who have tokens.
2. They trigger a run that fails, pause a job and cancel a run. The rest happens by itself.
3. Once there is something to see in each picture, Chromium takes it, in light and in dark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
from PIL import Image
from playwright.sync_api import Page

from supervisor.ledger.actions import system_user
from supervisor.web.access_file import Role, line_for, new_token
from tests.ports import free_port
from tests.processes import started
from tests.tools.web.browser import chromium, log_in
from tests.waiting import scaled, status_of, wait_until

ROOT = Path(__file__).parents[2]

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

#: A picture ends here, however long its page is.
TALLEST = 1_300

#: In place of the names of this machine and of its folders.
HOST = "app-1"

#: Of each picture.
COLOURS = 128

RENAME = """names => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const [real, shown] of Object.entries(names))
      texts.currentNode.data = texts.currentNode.data.replaceAll(real, shown);
}"""


class Examples:
    """`supervisor up` with the example schedules, as ann and bob see it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokens = {name: new_token() for name in ("ann", "bob")}
        self.address = f"http://127.0.0.1:{free_port()}"
        for folder in ("schedules", "docs"):
            shutil.copytree(ROOT / folder, directory / folder)
        access = directory / "access.yaml"
        lines = [line_for(token, name, Role.EDITOR) for name, token in self.tokens.items()]
        access.write_text("\n".join(["tokens:", *lines, ""]))
        self.environ = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SUPERVISOR_ACCESS_FILE": str(access),
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        port = self.address.rpartition(":")[2]
        words = ["supervisor", "-A", "examples.app", "up", "--concurrency", "6", "--port", port]
        process = started(words, self.directory, self.directory / "up.log", self.environ)
        try:
            yield
        finally:
            process.terminate()
            status_of(process)

    def runs(self, **query: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(f"{self.address}/api/v1/runs", params=query, timeout=scaled(5))
        except httpx.TransportError:
            return []
        return list(answer.json()) if answer.is_success else []

    def acts(self, name: str, path: str, **body: Any) -> None:
        bearer = {"authorization": f"Bearer {self.tokens[name]}"}
        url = f"{self.address}/api/v1/{path}"
        httpx.post(url, json=body, headers=bearer, timeout=scaled(5)).raise_for_status()

    def has_cancelled(self) -> bool:
        """Whether a run was cancelled; one may have ended since it was seen."""
        for run in self.runs(job="load-report", outcome="running"):
            try:
                self.acts("ann", f"runs/{run['run']}/cancel", reason="wrong arguments, once more")
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.CONFLICT:
                    raise
            else:
                return True
        return False

    def make_things_happen(self, ends: int) -> str:
        """Until there is something of everything, and `ends` runs of the plainest job.

        Returns the id of a run that failed.
        """
        wait_until(lambda: self.runs(job="checksum-docs", outcome="succeeded"), 60, every=1)
        wrong = {"kwargs": {"tree": 17}, "overlap": "allow", "reason": "is the new share there?"}
        self.acts("ann", "jobs/checksum-docs/trigger", **wrong)
        why = {"reason": "the warehouse moves until Monday, CHG-2041"}
        self.acts("bob", "jobs/daily-summary/pause", **why)
        wait_until(self.has_cancelled, 60, every=1)
        wait_until(lambda: len(self.runs(job="sample-load", outcome="succeeded")) >= ends, 300, 2)
        wait_until(lambda: self.runs(job="load-report", outcome="skipped"), 60, every=1)
        wait_until(lambda: self.runs(outcome="waiting") and self.runs(outcome="running"), 60)
        [failed, *_] = wait_until(lambda: self.runs(job="checksum-docs", outcome="failed"), 60)
        return str(failed["run"])


class Album:
    """Takes what a page shows, in light and in dark."""

    def __init__(self, page: Page, folder: Path, width: int, names: dict[str, str]) -> None:
        self._page, self._folder, self._width, self._names = page, folder, width, names
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str, path: str, *said: str) -> None:
        """Of a page, once it says that."""

        def says_it() -> bool:
            self._page.goto(path)
            text = self._page.locator("main").text_content() or ""
            return all(words in text for words in said)

        wait_until(says_it, 90, every=0.5)
        self.photograph(name)

    def photograph(self, name: str) -> None:
        for scheme in SCHEMES:
            self._page.emulate_media(color_scheme=scheme)
            self._page.evaluate(RENAME, self._names)
            box = self._page.evaluate("document.documentElement.offsetHeight")
            file = self._folder / f"{name}-{scheme}.png"
            self._page.screenshot(
                path=file,
                clip={"x": 0, "y": 0, "width": self._width, "height": min(box, TALLEST)},
                full_page=True,
                animations="disabled",
            )
            make_small(file)


def make_small(picture: Path) -> None:
    """A third of its size: with those colours only that are used most."""
    with Image.open(picture) as opened:
        full = opened.convert("RGB")
    colours: list[tuple[int, Any]] = full.getcolors(full.width * full.height) or []
    used = [colour for _, colour in sorted(colours, reverse=True)[:COLOURS]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in used for part in colour])
    full.quantize(palette=palette, dither=Image.Dither.NONE).save(picture, optimize=True)


def take_all(examples: Examples, page: Page, album: Album, ends: int) -> None:
    failed = examples.make_things_happen(ends)
    page.route("**/page.js", lambda route: route.abort())  # in both pictures it is the same moment
    log_in(page, examples.address, examples.tokens["ann"])
    album.take("page", f"{examples.address}/", "checksum-docs", "waiting", "skipped")
    album.take("failure", f"{examples.address}/runs/{failed}", "TypeError", "Traceback")
    album.take("timeline", f"{examples.address}/jobs/load-report?reach=1m", "running", "blocked by")
    album.take("queues", f"{examples.address}/queues", "serial.checksum-docs", "present")
    album.take("record", f"{examples.address}/record", "CHG-2041", "ann")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__.split("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--width", type=int, default=1280, help="Of the window, in pixels.")
    parser.add_argument("--ends", type=int, default=26, help="Runs of sample-load to wait for.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        examples = Examples(Path(folder))
        names = {
            folder: "/srv/app",
            str(ROOT): "/srv/app",
            sysconfig.get_path("stdlib"): "/usr/lib/python3",
            socket.gethostname(): HOST,
            f"via {system_user()}": "via app",
        }
        page = browser.new_page(viewport={"width": options.width, "height": 900})
        with examples.running():
            take_all(examples, page, Album(page, options.to, options.width, names), options.ends)


if __name__ == "__main__":
    main()
