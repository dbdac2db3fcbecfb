"""A team's project as the tests deploy it: its app, its schedule files, Celery's own commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.job.run import Run
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance import warm
from tests.processes import started
from tests.waiting import wait_until
from tests.written import json_lines

Process = subprocess.Popen[bytes]

APP = Path(__file__).with_name("team.py")

#: Of all workers whose test names none, in place of prefork.
POOL = os.environ.get("TEAM_POOL", "")


def needs_children(why: str) -> pytest.MarkDecorator:
    """A test that no pool passes whose runs have no process of their own."""
    return pytest.mark.skipif(POOL not in ("", "prefork"), reason=f"no child process: {why}")


#: What `serve` asks for where it is asked from elsewhere.
TOKEN = "of-the-tests-alone"


@dataclass(frozen=True)
class Sign:
    """One line of the witness: a job's own word that it started or ended, outside the product."""

    run: str
    step: str | None
    item: int | None
    event: str
    at: float
    pid: int
    attempt: int
    nominal_at: str
    fencing_token: int
    retries: int


@cache
def ledger_at(url: str) -> Ledger:
    """One for each address: tests look many times a second, and to connect takes most of a look."""
    return Ledger.open(Settings(redis_url=url))


@dataclass
class Project:
    """A project in a directory of its own, with its ledger at `url`."""

    directory: Path
    url: str

    broker: str | None = None
    """Where it is not the ledger's server, or is spelled otherwise."""

    is_apart: bool = True
    """Whether the broker is another server."""

    within: Sequence[str] = ()
    """Words before each command, such as those that start it on another host."""

    environ: dict[str, str] = field(default_factory=dict)

    is_cold: bool = False
    """Each process imports all by itself."""

    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for module in (APP, APP.with_name("team_steps.py")):
            (self.directory / module.name).write_text(module.read_text())
        self.schedules.mkdir(exist_ok=True)

    @property
    def schedules(self) -> Path:
        return self.directory / "schedules"

    @property
    def ledger(self) -> Ledger:
        return ledger_at(self.url)

    def settings(self, text: str) -> None:
        """Celery's settings of the app, as the text of a module."""
        (self.directory / "team_settings.py").write_text(text)

    def extend(self, text: str) -> None:
        """Adds lines to the end of the app's module."""
        with (self.directory / "team.py").open("a") as module:
            module.write(text)

    def schedule(self, text: str, name: str = "jobs.yaml") -> None:
        (self.schedules / name).write_text(text)

    def deploy(self, schedule: str, processes: int = 2) -> None:
        """Returns once a beat has loaded the jobs, and a worker consumes the default queue."""
        self.schedule(schedule)
        self.beat()
        self.worker(processes=processes)
        self.wait_for_jobs()

    def wait_for_jobs(self) -> None:
        """Returns once a beat has loaded the schedule files, and Celery has made their messages."""
        files = [yaml.safe_load(file.read_text()) for file in self.schedules.glob("*.yaml")]
        jobs = {name for file in files for name in file["jobs"]}
        wait_until(lambda: self.ledger.scheduled().keys() >= jobs, 20)
        wait_until(lambda: all(map(self.has_messages, jobs)), 20)

    def has_messages(self, job: str) -> bool:
        """Whether it is known how messages of the job's runs are sent."""
        keys = self.ledger.keys
        is_apart = self.ledger.client.hexists(keys.job(job), "apart")
        return bool(is_apart or self.ledger.client.exists(keys.message(job)))

    def trigger(self, job: str) -> Run:
        """A run by hand; beat sends it."""
        return self.ledger.trigger(self.ledger.spec(job))

    def beat(self, *options: str) -> Process:
        return self._start("beat", "beat", "-l", "info", *options)

    def worker(
        self, *options: str, queues: str = "celery", processes: int = 2, mingles: bool = False
    ) -> Process:
        """Returns once the worker consumes its queues."""
        worker = self.hire(*options, queues=queues, processes=processes, mingles=mingles)
        wait_until(lambda: self.is_ready(worker) or worker.poll() is not None, 30)
        assert worker.poll() is None, self.log_of(worker)
        return worker

    def hire(
        self, *options: str, queues: str = "celery", processes: int = 2, mingles: bool = False
    ) -> Process:
        """A worker that may still be on its way.

        mingles: it asks the others what is revoked, for which Celery waits a second.
        """
        name = f"worker{len(self.processes)}"
        return self._start(
            name,
            *("worker", "-l", "info", "-n", f"{name}@%h", "-Q", queues, "-c", str(processes)),
            *(["-P", POOL] if POOL and "-P" not in options else []),
            *([] if mingles else ["--without-mingle"]),
            *options,
        )

    def serve(self, *options: str) -> Process:
        """Returns once it listens on this machine, where the options name a port."""
        serve = self._start("serve", "supervisor", "serve", *options)
        if "--port" in options:
            port = int(options[options.index("--port") + 1])
            wait_until(lambda: is_listening(port) or serve.poll() is not None, 30)
        return serve

    def is_ready(self, worker: Process) -> bool:
        log = self.log_of(worker)
        return f"worker{self.processes.index(worker)}@" in log and "ready." in log

    def log_of(self, worker: Process) -> str:
        return self.log(f"worker{self.processes.index(worker)}")

    def supervisor(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A verb on the team's command line."""
        return self.celery("supervisor", *words)

    def celery(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run("-m", "celery", "-A", "team", *words)

    def code(self, text: str) -> Any:
        """What the team's own code, which has imported the app, prints as JSON."""
        done = self._run("-c", "import json, team\n" + text)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob("*.log")))

    def events_of(self, worker: Process, event: str) -> list[dict[str, object]]:
        return self.events(f"worker{self.processes.index(worker)}", event)

    def events(self, name: str, event: str) -> list[dict[str, object]]:
        """The log lines of one process with this event word."""
        logged = json_lines(self.directory / f"{name}.log")
        return [fields for fields in logged if fields["event"] == event]

    def witness(self, job: str | None = None) -> list[Sign]:
        signs = [Sign(**fields) for fields in json_lines(self.directory / "witness.jsonl")]
        return [sign for sign in signs if job is None or sign.run.startswith(f"{job}@")]

    def starts(self, job: str) -> list[Sign]:
        return [sign for sign in self.witness(job) if sign.event == "start"]

    def run_when(self, run_id: str, state: str, timeout: float = 20) -> Run:
        """The run, once it is in this state."""
        ledger = self.ledger
        wait_until(lambda: ledger.run(run_id).state == state, timeout)
        return ledger.run(run_id)

    def let_end(self, run_id: str) -> None:
        """A run that is held, in all its attempts."""
        (self.directory / f"may-end-{run_id}").touch()

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _start(self, name: str, *arguments: str) -> Process:
        words = ("-m", "celery", "-A", "team", *arguments)
        environ = self._environment()
        log = self.directory / f"{name}.log"
        # What patches the standard library does so before anything is imported.
        if self._is_cold(environ) or "gevent" in arguments:
            command = [*self.within, sys.executable, *words]
            process = started(command, self.directory, log, environ)
        else:
            with log.open("ab") as output:
                process = warm.Started(words, self.directory, environ, output, output)
        self.processes.append(process)
        return process

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = self._environment()
        if not self._is_cold(environ):
            return warm.run(words, self.directory, environ)
        command = [*self.within, sys.executable, *words]
        return subprocess.run(
            command, cwd=self.directory, env=environ, capture_output=True, text=True, check=False
        )

    def _is_cold(self, environ: dict[str, str]) -> bool:
        return self.is_cold or bool(self.within) or not warm.READ_AT_IMPORT.isdisjoint(environ)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TEAM_BROKER": self.broker or self.url,
            **({"SUPERVISOR_REDIS_URL": self.url} if self.broker and self.is_apart else {}),
            "PYTHONPATH": os.pathsep.join([str(self.directory), os.environ.get("PYTHONPATH", "")]),
            "SUPERVISOR_LOG_FORMAT": "json",
            "SUPERVISOR_TOKEN": TOKEN,
            "SUPERVISOR_LOCK_DIR": str(self.directory / "locks"),
            **self.environ,
        }


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def overlapping(signs: list[Sign]) -> list[tuple[str, str]]:
    """Pairs of runs whose own words say that they were at work at the same time."""
    open_runs: dict[str, str] = {}
    pairs = []
    for sign in sorted(signs, key=lambda sign: sign.at):
        if sign.event == "start":
            pairs += [(other, sign.run) for other in open_runs if other != sign.run]
            open_runs[sign.run] = sign.run
        else:
            open_runs.pop(sign.run, None)
    return pairs


def ticks_between(starts: list[Sign]) -> list[float]:
    """Distances between the nominal times of consecutive runs, in seconds."""
    times = sorted(datetime.fromisoformat(sign.nominal_at).timestamp() for sign in starts)
    return [later - earlier for earlier, later in pairwise(times)]


def outcomes(ledger: Ledger, job: str) -> dict[str, int]:
    """How many ticks came to what, by the counters; open runs by their state."""
    counters = ledger.job(job).counters
    counts: dict[str, int] = defaultdict(int)
    for what, count in counters.items():
        kind = what.partition(":")[0]
        if kind in ("finished", "skipped", "missed", "excluded"):
            counts[kind] += count
    for run in ledger.history(job, 1000):
        if run.state.is_open:
            counts["open"] += 1
    return dict(counts)
