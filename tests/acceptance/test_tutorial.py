"""The tutorial does what it says: its files are written, its commands run and compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import started
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-job.md"

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.S | re.M)

COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.M)

#: What goes on in a terminal of its own, and the file with what it prints.
STARTED = {"supervisor -A proj up\n": "up.log", "python hook.py\n": "hook.log"}


def shape(line: str) -> str:
    """Without its numbers, times, gaps, names of hosts and ids of triggered runs."""
    nameless = re.sub(r"@manual-\w{26}", "@manual", " ".join(line.split()))
    hostless = re.sub(r"(?<![\w.-])[\w.-]*[A-Za-z][\w.-]*:\d+", "HOST", nameless)
    timeless = re.sub(r"\b(\d[\d.]*(ms|s|m|h|d))+\b", "DURATION", hostless)
    return re.sub(r"\d+", "0", re.sub(r"\d+:\d\d(:\d\d)?", "TIME", timeless))


class Reader:
    """Someone who follows the page, with ports of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {"9809": str(free_port()), "9900": str(free_port())}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environ = {**os.environ, "PATH": path, "COLUMNS": "160"}
        self.pid = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def follow(self, kind: str, title: str, text: str) -> None:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        if kind == "text":
            log = self.directory / title
            wait_until(lambda: text in log.read_text(), 90, every=1.5)
        elif title:
            (self.directory / title).parent.mkdir(exist_ok=True)
            (self.directory / title).write_text(text)
        elif text in STARTED:
            self.start(text, STARTED[text])
        elif kind == "console":
            for command, output in COMMAND.findall(text):
                self.run(command, {shape(line) for line in output.splitlines()})

    def start(self, command: str, name: str) -> None:
        port = ["--port", self.ports["9809"]] if command.startswith("supervisor") else []
        words = [*command.split(), *port]
        self.processes.append(started(words, self.directory, self.directory / name, self.environ))

    def run(self, command: str, expected: set[str]) -> None:
        """Until it prints that, for a run or a tick may have to come first."""
        command = command.replace("kill -9 5497", f"kill -9 {self.pid}")
        printed = ""

        def is_as_said() -> bool:
            nonlocal printed
            printed = subprocess.run(
                command,
                shell=True,
                cwd=self.directory,
                env=self.environ,
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            return expected <= {shape(line) for line in printed.splitlines()}

        try:
            wait_until(is_as_said, 60, every=1.5)
        except AssertionError:
            pytest.fail(f"{command}\nprinted\n{printed}\nand not\n{expected}")
        if matches := re.search(r'"worker": "[^"]*:(\d+)"', printed):
            self.pid = matches[1]

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGINT)
        for process in self.processes:
            process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    someone = Reader(tmp_path)
    yield someone
    someone.stop()


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    for kind, title, text in BLOCK.findall(PAGE.read_text()):
        reader.follow(kind, title, text)
    assert reader.pid
