"""A foreign app, deployed twice: as it is, and with one line and one schedule file."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from supervisor.ledger.ledger import Ledger
from tests.acceptance import warm
from tests.acceptance.project import ledger_at
from tests.processes import started
from tests.waiting import scaled, wait_until
from tests.written import whole_lines

APPS = Path(__file__).with_name("apps")

SETTINGS = """
import os

broker_url = result_backend = os.environ["FOREIGN_REDIS"]
"""

#: The task by which Celery waits for a chord's header.
POLL = "celery.chord_unlock"

#: Sends all calls of the app, and prints the ids of their results.
SEND = """
import json
{facts}
print(json.dumps({{name: sent(call) for name, call in calls().items()}}))
"""

SENDING = """
def sent(call):
    result = call.apply_async()
    if hasattr(result, "save"):
        result.save()
        return ["group", result.id]
    return ["task", result.id]
"""

#: Prints state and result of each.
GET = """
import json, sys
from celery.result import AsyncResult, GroupResult

def got(kind, id):
    if kind == "group":
        return GroupResult.restore(id, app=app).get(timeout={timeout})
    result = AsyncResult(id, app=app)
    value = result.get(timeout={timeout}, propagate=False)
    return [result.state, repr(value) if isinstance(value, Exception) else value]

print(json.dumps({{name: got(*sent) for name, sent in {ids!r}.items()}}, default=repr))
"""

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SENDER = re.compile(r"gen\d+@[\w.-]+")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+\d\d:\d\d)?")


def alike(text: str) -> str:
    """What stays the same from one call to the next."""
    return MOMENT.sub("<moment>", SENDER.sub("<sender>", UUID.sub("<id>", text)))


@dataclass
class ForeignApp:
    module: str
    """Where its app is."""

    directory: Path
    url: str
    is_supervised: bool
    environ: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.copytree(APPS, self.directory, ignore=shutil.ignore_patterns("__pycache__"))
        (self.directory / "settings.py").write_text(SETTINGS)
        (self.directory / "schedules").mkdir()

    @property
    def ledger(self) -> Ledger:
        return ledger_at(self.url)

    @property
    def broker(self) -> Redis:
        return Redis.from_url(self.url)

    def schedule(self, text: str) -> None:
        (self.directory / "schedules" / "jobs.yaml").write_text(text)

    def celery(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run("-m", "celery", "-A", self.module, *words)

    def code(self, text: str) -> Any:
        """What the app's own code prints as JSON."""
        begin = f"from {self.module} import app, calls\n"
        done = self._run("-c", begin + text)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def send(self) -> dict[str, list[str]]:
        """Kind and id of the result of each of its calls."""
        ids: dict[str, list[str]] = self.code(SEND.format(facts=SENDING))
        return ids

    def queues(self) -> list[str]:
        """Those of the broker in which messages wait."""
        keys = map(bytes.decode, self.broker.scan_iter(_type="list"))
        others = ("supervisor:", "celery-task-meta")
        return sorted(key for key in keys if not key.startswith(others))

    def is_idle(self) -> bool:
        """Whether no message waits, and each that a worker took has been acknowledged."""
        return not self.queues() and not self.broker.exists("unacked")

    def messages(self) -> list[str]:
        """What lies in the broker's queues, but for ids, moments and names of processes."""
        return [
            f"{queue}: {alike(json.dumps(unpacked(text), sort_keys=True))}"
            for queue in self.queues()
            for text in self.broker.lrange(queue, 0, -1)
        ]

    def results(self, ids: dict[str, list[str]]) -> Any:
        """State and value of each, but for ids, moments and names of processes."""
        found = self.code(GET.format(ids=ids, timeout=scaled(60)))
        return json.loads(alike(json.dumps(found, sort_keys=True)))

    def witness(self) -> list[str]:
        """What the tasks and the signals' handlers wrote.

        Celery's `chord_unlock` asks once a second whether the header is done: how often depends
        on the moment, so each of its lines counts once, and its retries do not.
        """
        lines = whole_lines(self.directory / "witness")
        polls = {line for line in lines if POLL in line}
        others = [line for line in lines if POLL not in line]
        return sorted([*others, *(line for line in polls if not line.endswith("Retry"))])

    def start(self, name: str, *words: str, is_cold: bool = False) -> subprocess.Popen[bytes]:
        """One of Celery's commands."""
        words = ("-m", "celery", "-A", self.module, *words)
        log = self.directory / f"{name}.log"
        process: subprocess.Popen[bytes]
        if is_cold:
            process = started([sys.executable, *words], self.directory, log, self.environment())
        else:
            with log.open("ab") as output:
                process = warm.Started(words, self.directory, self.environment(), output, output)
        self.processes.append(process)
        return process

    def worker(self, *options: str, name: str = "worker", is_cold: bool = False) -> None:
        """Returns once it is ready."""
        words = ("worker", "-l", "info", "-n", f"{name}@%h", *options)
        worker = self.start(name, *words, is_cold=is_cold)
        wait_until(lambda: "ready." in self.log(name) or worker.poll() is not None, 30)
        assert worker.poll() is None, self.log(name)

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        """Ends all that runs, as a deployment does."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(scaled(10))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return warm.run(words, self.directory, self.environment())

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FOREIGN_REDIS": self.url,
            **({"SUPERVISED": "1"} if self.is_supervised else {}),
            "PYTHONPATH": str(self.directory),
            **self.environ,
        }


def unpacked(text: bytes) -> dict[str, Any]:
    """A message in kombu's transport, with its body as it was written, or its length."""
    message: dict[str, Any] = json.loads(text)
    body = base64.b64decode(message["body"])
    is_text = message["content-type"] == "application/json"
    return {**message, "body": body.decode() if is_text else len(body)}
