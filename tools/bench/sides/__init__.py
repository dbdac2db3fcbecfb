"""Those who are compared: each a module of its own, on a database of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.processes import started

Process = subprocess.Popen[bytes]

REPOSITORY = Path(__file__).parents[3]

#: Evaluates the lines that it is given, and writes each result on a line.
DRIVER = """
import json, sys, traceback
from {module} import *
for line in sys.stdin:
    try:
        answer = {{"value": eval(line)}}
    except Exception:
        answer = {{"error": traceback.format_exc()}}
    print("answer:", json.dumps(answer), flush=True)
"""


@dataclass
class Side:
    name: str

    module: str
    """A file beside this one, which reads SIDE to know whose part it plays."""

    directory: Path
    url: str
    processes: list[Process] = field(default_factory=list)
    driver: Process | None = None

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).with_name(f"{self.module}.py")
        (self.directory / source.name).write_text(source.read_text())
        self.empty()

    @property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url, decode_responses=True)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(Settings(redis_url=self.url))

    def empty(self) -> None:
        self.client.flushdb()
        self.ledger.acknowledge_server()

    @contextmanager
    def queued(self) -> Iterator[Callable[[], int]]:
        """Counts the messages that wait in the default queue."""
        client = self.client
        yield lambda: int(client.llen("celery"))

    def celery(self, *command: str) -> Process:
        return self.python("-m", "celery", "-A", self.module, *command)

    def workers(self, *names: str) -> list[Process]:
        """Returns when all of them answer."""
        started = [
            self.celery("worker", "-c", "2", "-l", "warning", "-n", f"{name}@%h") for name in names
        ]
        for _ in range(60):
            if self.asked(f"len(app.control.ping(timeout=2, limit={len(names)}))") == len(names):
                return started
            assert all(process.poll() is None for process in started), self.log()
        raise TimeoutError(self.log())

    def python(self, *arguments: str, **pipes: int) -> Process:
        """With a session of its own, so that its children can be ended with it."""
        process = started(
            [sys.executable, *arguments],
            self.directory,
            self.directory / "log",
            self.environment,
            start_new_session=True,
            **pipes,
        )
        self.processes.append(process)
        return process

    def asked(self, expression: str) -> Any:
        """What the side's own code says, in a process that is kept, as an app's are."""
        if self.driver is None:
            code = DRIVER.format(module=self.module)
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.driver = self.python("-c", code, **pipes)
        assert self.driver.stdin
        assert self.driver.stdout
        self.driver.stdin.write(f"{expression}\n".encode())
        self.driver.stdin.flush()
        for line in self.driver.stdout:
            if line.startswith(b"answer:"):
                answer = json.loads(line.removeprefix(b"answer:"))
                assert "error" not in answer, answer["error"]
                return answer["value"]
        raise AssertionError(self.log())

    def asked_alone(self, expression: str) -> Any:
        """The same in a process that does nothing else."""
        kept, self.driver = self.driver, None
        try:
            return self.asked(expression)
        finally:
            if self.driver:
                self.end(self.driver)
            self.driver = kept

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def end(self, process: Process) -> None:
        """At once: a worker with work, or a beat that sleeps until its next entry, is slow."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.processes.remove(process)

    def stop(self) -> None:
        for process in [*self.processes]:
            self.end(process)
        self.driver = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SIDE": self.name,
            "BROKER": self.url,
            "PYTHONPATH": os.pathsep.join([str(self.directory), str(REPOSITORY)]),
            "SUPERVISOR_LOG_FORMAT": "json",
            **({"SUPERVISOR_LOCK_DIR": ""} if self.name == "unseen" else {}),
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


def cpu_seconds(pid: int) -> float:
    """Of all threads that are alive, in nanoseconds on the processor as the kernel counts them."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
