"""Those who are compared: each a module of its own, on a database of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings

Process = subprocess.Popen[bytes]

REPOSITORY = Path(__file__).parents[3]


@dataclass
class Side:
    """`module`: a file beside this one, which reads SIDE to know whose part it plays."""

    name: str
    module: str
    directory: Path
    url: str
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).with_name(f"{self.module}.py")
        (self.directory / source.name).write_text(source.read_text())
        self.client.flushdb()
        self.ledger.acknowledge_server()

    @property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url, decode_responses=True)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(Settings(redis_url=self.url))

    def celery(self, *command: str) -> Process:
        return self.python("-m", "celery", "-A", self.module, *command)

    def worker(self, *options: str) -> Process:
        """Returns when it answers."""
        started = self.celery("worker", "-c", "2", "-l", "warning", *options)
        while not self.asked("len(app.control.ping(timeout=2))"):
            assert started.poll() is None, self.log()
        return started

    def python(self, *arguments: str) -> Process:
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.directory,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def asked(self, expression: str) -> Any:
        """What the side's own code says, in a process of its own."""
        code = f"import json; from {self.module} import *; print(json.dumps({expression}))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SIDE": self.name,
            "BROKER": self.url,
            "PYTHONPATH": os.pathsep.join([str(self.directory), str(REPOSITORY)]),
            "SUPERVISOR_LOG_FORMAT": "json",
        }


@contextmanager
def sides(module: str, names: Sequence[str], directory: Path, url: str) -> Iterator[list[Side]]:
    place = url.rpartition("/")[0]
    taking_part = [
        Side(name, module, directory / module / name, f"{place}/{number}")
        for number, name in enumerate(names, 1)
    ]
    try:
        yield taking_part
    finally:
        for side in taking_part:
            side.stop()
            side.client.flushdb()


def until(is_so: Any, timeout: float, every: float = 0.01) -> float:
    """Seconds since the epoch at which it was so; raises after `timeout`."""
    deadline = time.time() + timeout
    while not is_so():
        if time.time() > deadline:
            raise TimeoutError
        time.sleep(every)
    return time.time()
