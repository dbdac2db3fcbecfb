"""``python -m tools.chaos.two_apps --minutes 5``: two apps on one Redis database, killed at random.

They have the same name, tasks and jobs, and two prefixes; each a queue of its own, as two apps of
one team have. What a task is given names its app, and the task says in which app it runs. Exits 1
when a message came to the other app, or an app did not go on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.audit.step import audit
from supervisor.ledger.ledger import Ledger
from supervisor.process import die_with_parent
from supervisor.settings import Settings
from tests.processes import started
from tests.waiting import wait_until
from tests.written import whole_lines

PROJECT = Path(__file__).parents[2]

#: The default prefix, and another.
PREFIXES = ("supervisor", "other")

APP = """\
import json, os, time
from celery import Celery
from supervisor.app import supervise

ME = os.environ["SUPERVISOR_PREFIX"]
app = Celery("team", broker=os.environ["BROKER"])
app.conf.task_default_queue = f"queue-{ME}"
app.conf.beat_schedule = {"static": {"task": "team.work", "schedule": 1.0, "args": [ME, "static"]}}
supervise(app, schedules="schedules")


def sign(meant_for, job):
    with open("witness.jsonl", "a") as witness:
        witness.write(json.dumps([meant_for, ME, job]) + "\\n")


@app.task
def work(meant_for, job):
    sign(meant_for, job)
    time.sleep(0.3)


@app.task(guard={"overlap": "queue_all"})
def called(meant_for):
    sign(meant_for, "called")


@app.task
def calls(meant_for):
    called.delay(meant_for)
"""

SCHEDULE = """\
jobs:
  work: {{task: team.work, every: 1s, args: [{prefix}, work], lease_ttl: 4s}}
  serial: {{task: team.work, every: 2s, serial: true, args: [{prefix}, serial], lease_ttl: 4s}}
  calls: {{task: team.calls, every: 2s, args: [{prefix}], lease_ttl: 4s}}
"""

KINDS = frozenset(("work", "serial", "static", "called"))

#: From one kill to the next, and from a kill to the start in its place.
KILL_SECONDS = (2.0, 4.0)
RESTART_SECONDS = (0.5, 2.0)

#: A worker that is killed leaves runs that are found after their leases.
ENDING_SECONDS = 60.0


@dataclass
class Deployment:
    """One app: two beats, a worker, and one of its serial queue."""

    directory: Path
    url: str
    prefix: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: dict[str, float] = field(default_factory=dict)
    at_rest: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.directory / "schedules").mkdir(parents=True)
        (self.directory / "team.py").write_text(APP)
        schedule = SCHEDULE.format(prefix=self.prefix)
        (self.directory / "schedules" / "jobs.yaml").write_text(schedule)
        self.ledger = Ledger.open(Settings(self.url, self.prefix))
        self.ledger.acknowledge_server()

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        spec = self.ledger.scheduled().get("serial")
        serial = spec.serial_queue if spec else None
        worker = ("worker", "-l", "info", "-c", "2", "-n")
        return {
            **{name: ("beat", "-l", "info", "-s", f"{name}.db") for name in ("beat0", "beat1")},
            "worker": (*worker, f"worker-{self.prefix}@%h", "-Q", f"queue-{self.prefix}"),
            **({"serial": (*worker, f"serial-{self.prefix}@%h", "-Q", serial)} if serial else {}),
        }

    def keep_running(self) -> None:
        for name, arguments in self.members.items():
            if time.monotonic() < self.restarts.get(name, 0.0):
                continue
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                self.processes[name] = self._start(name, arguments)

    def kill(self, name: str, rng: random.Random) -> None:
        process = self.processes[name]
        # With its children, as an init system does, or alone.
        with suppress(ProcessLookupError):
            rng.choice((os.kill, os.killpg))(process.pid, signal.SIGKILL)
        process.wait()
        self.restarts[name] = time.monotonic() + rng.uniform(*RESTART_SECONDS)

    def stop(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def witness(self) -> list[tuple[str, str, str]]:
        """Of each body that started: the app it was meant for, the app it ran in, and the job."""
        lines = whole_lines(self.directory / "witness.jsonl")
        return [tuple(json.loads(line)) for line in lines]

    def logged(self, event: str) -> int:
        logs = "".join(path.read_text() for path in self.directory.glob("*.log"))
        return logs.count(f'"event": "{event}')

    def _start(self, name: str, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        environment = {
            **{key: v for key, v in os.environ.items() if not key.startswith("SUPERVISOR_")},
            "BROKER": self.url,
            "PYTHONPATH": os.pathsep.join((str(self.directory), str(PROJECT))),
            "SUPERVISOR_LOG_FORMAT": "json",
            "SUPERVISOR_PREFIX": self.prefix,
        }
        return started(
            [sys.executable, "-m", "celery", "-A", "team", *arguments],
            self.directory,
            self.directory / f"{name}.log",
            environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.1), default=5.0, show_default=True)
@click.option("--seed", type=int, help="Of the kills; a new one by default.")
def main(minutes: float, seed: int | None) -> None:
    """Two apps on one Redis database, with kills; then say what came to whom."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="two-apps-"))
    click.echo(f"seed {seed}, logs and witness in {directory}", err=True)
    (directory / "valkey").mkdir(mode=0o700)
    with EmbeddedServer(directory / "valkey") as server:
        apps = [Deployment(directory / prefix, server.url, prefix) for prefix in PREFIXES]
        try:
            kills = fire(apps, minutes, random.Random(seed))
        finally:
            for app in apps:
                app.stop()
        rows = {app.prefix: judged(app) for app in apps}
    click.echo(f"{minutes:g} minutes, {sum(kills.values())} kills: {dict(sorted(kills.items()))}")
    for prefix, row in rows.items():
        click.echo(f"{prefix}: " + ", ".join(f"{what} {count}" for what, count in row.items()))
    wrong = [row for row in rows.values() if any(row[what] for what in WRONG)]
    sys.exit(1 if wrong or not all(row["became leader"] for row in rows.values()) else 0)


#: What has to be 0.
WRONG = ("foreign messages", "refused", "unknown tasks", "ticks unaccounted", "jobs at rest")


def fire(apps: list[Deployment], minutes: float, rng: random.Random) -> Counter[str]:
    kills = Counter[str]()

    def all_work() -> bool:
        for app in apps:
            app.keep_running()
        return all({job for *_, job in app.witness} == KINDS for app in apps)

    with suppress(AssertionError):  # the judgement names what is at rest
        wait_until(all_work, 60, every=0.5)
    until, next_kill = time.monotonic() + 60 * minutes, 0.0
    while time.monotonic() < until:
        all_work()
        if time.monotonic() > next_kill:
            app = rng.choice(apps)
            name = rng.choice(sorted(app.processes))
            app.kill(name, rng)
            kills[f"{name} of {app.prefix}"] += 1
            next_kill = time.monotonic() + rng.uniform(*KILL_SECONDS)
        time.sleep(0.1)
    counts = [Counter(job for *_, job in app.witness) for app in apps]

    def all_went_on() -> bool:
        all_work()
        now = [Counter(job for *_, job in app.witness) for app in apps]
        return all(
            after[kind] > before[kind]
            for before, after in zip(counts, now, strict=True)
            for kind in KINDS
        )

    with suppress(AssertionError):
        wait_until(all_went_on, ENDING_SECONDS, every=0.5)
    for app, before in zip(apps, counts, strict=True):
        after = Counter(job for *_, job in app.witness)
        app.at_rest = [kind for kind in KINDS if after[kind] <= before[kind]]
    return kills


def judged(app: Deployment) -> dict[str, int]:
    signs = app.witness
    ledger = app.ledger
    audited = list(audit(ledger, ledger.scheduled().values(), ledger.now()))
    return {
        "bodies started": len(signs),
        "became leader": app.logged("leadership taken"),
        "foreign messages": sum(meant_for != ran_in for meant_for, ran_in, _ in signs),
        "refused": app.logged("queue shared with another ledger"),
        "unknown tasks": app.logged("Received unregistered task"),
        "ticks unaccounted": sum(f.difference for f in audited),
        "jobs at rest": len(app.at_rest),
    }


if __name__ == "__main__":
    main()
