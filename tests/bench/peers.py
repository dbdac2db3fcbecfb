"""Who does the same work in three ways: plain Celery, its chord, and a supervised batch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.crew import database
from tests.waiting import wait_until

MODULE = Path(__file__).with_name("noop.py")


@dataclass
class Peer:
    """A worker with two children, with Celery's own defaults, on a database of its own."""

    name: str
    directory: Path
    url: str
    commands: Sequence[tuple[str, ...]] = (("worker", "-c", "2"),)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        self.directory.mkdir(parents=True)
        (self.directory / MODULE.name).write_text(MODULE.read_text())
        for command in self.commands:
            with self._log(command[0]).open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "celery", "-A", "noop", *command],
                        cwd=self.directory,
                        env=self._environment(),
                        stdout=log,
                        stderr=log,
                    )
                )
        wait_until(lambda: self.asked("len(noop.app.control.ping())") == 1, 30)

    def seconds_for(self, items: int) -> float:
        before = self._delivered()
        seconds = self.asked(f"noop.DRIVERS[noop.PEER]({items})")
        # A batch may send an item twice; the second delivery is refused, and counted here.
        assert self._delivered() - before >= items
        return seconds

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)

    def asked(self, expression: str) -> float:
        """What the peer's own code says, in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-c", f"import noop; print({expression})"],
            cwd=self.directory,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    def _delivered(self) -> float:
        """By the worker's own count."""
        stats = "next(iter(noop.app.control.inspect().stats().values()))"
        return self.asked(f"{stats}['total'].get('noop.nothing', 0)")

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PEER": self.name,
            "BROKER": self.url,
            "PYTHONPATH": str(self.directory),
            "SUPERVISOR_LOG_FORMAT": "json",
        }


def peers(directory: Path, url: str) -> list[Peer]:
    return [
        Peer("plain", directory / "plain", database(url, 1)),
        Peer("chord", directory / "chord", database(url, 2)),
        Peer("batch", directory / "batch", database(url, 3), (("worker", "-c", "2"), ("beat",))),
    ]
