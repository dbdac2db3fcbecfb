"""`supervisor up`: everything in the foreground, kept running, and ended without a trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path

import httpx
import pytest
from celery import Celery

from supervisor.deploy.up import TOPOLOGY_SECONDS
from supervisor.guard.guard import REPORT_TIMEOUT
from supervisor.job.run import Batch, RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.settings import Settings
from tests.ports import free_port
from tests.processes import is_alive, started
from tests.waiting import let_pass, scaled, status_of, wait_until

TINY = """
import time
from celery import Celery
from supervisor.app import supervise
app = Celery("tiny")
supervise(app, schedules="schedules")
@app.task
def quick(): pass
@app.task
def slow(seconds): time.sleep(seconds)
"""

DOCUMENTS = Path(__file__).parents[2] / "schedules" / "documents.yaml"

TOKEN = "a-token-of-these-tests"

JOBS = "jobs: {quick: {task: tiny.quick, every: 1s}}"
SERIAL = "jobs: {apart: {task: tiny.quick, every: 1s, serial: true}}"


class Running:
    """One `supervisor up` in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        app: str = "tiny",
        jobs: str = JOBS,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.environment = environment or {}
        self.directory = directory
        self.app = app
        self.port = free_port()
        (directory / "schedules").mkdir()
        (directory / "tiny.py").write_text(TINY)
        self.schedule("jobs.yaml", jobs)
        self.process = self.start(*options)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        words = ("-A", self.app, "up", "--port", str(self.port), "-c", "2", *options)
        return started(
            [sys.executable, "-m", "supervisor", *words],
            self.directory,
            self.directory / "up.log",
            {**os.environ, "PYTHONPATH": str(self.directory), **self.environment},
            start_new_session=True,
            preexec_fn=hear_hangups,
        )

    def schedule(self, name: str, text: str) -> None:
        (self.directory / "schedules" / name).write_text(text)

    @property
    def log(self) -> str:
        return (self.directory / "up.log").read_text()

    @property
    def url(self) -> str:
        return (self.directory / ".supervisor" / "url").read_text()

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.open(Settings(redis_url=self.url))

    def knows(self, job: str) -> bool:
        return (self.directory / ".supervisor" / "url").exists() and job in self.ledger.specs()

    def started(self, job: str = "quick") -> int:
        return self.ledger.job(job).counters.get("started", 0) if self.knows(job) else 0

    def child(self, *words: str) -> int:
        """Pid of the child that was started with these words; 0 when there is none."""
        for pid in living_children(self.process.pid):
            line = told(pid, "cmdline")
            if all(word in line for word in words):
                return pid
        return 0

    def stop(self) -> None:
        if "ledger" in vars(self):
            self.ledger.client.close()
        leftover = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in leftover:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def hear_hangups() -> None:
    """As in a terminal; the tests may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def kept() -> Iterator[list[Running]]:
    ups: list[Running] = []
    yield ups
    for up in ups:
        up.stop()


@pytest.fixture
def running(tmp_path: Path, kept: list[Running]) -> Running:
    """That of the test before, unless it has ended."""
    if not kept or kept[-1].process.poll() is not None:
        environment = {"SUPERVISOR_LOCK_DIR": str(tmp_path / "locks")}
        kept.append(Running(tmp_path, environment={"SUPERVISOR_TOKEN": TOKEN, **environment}))
    wait_until(lambda: kept[-1].started() > 0, 30)
    return kept[-1]


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Running]:
    """The example of several tasks, on four documents."""
    (tmp_path / "docs").mkdir()
    for name in ("a", "b", "c", "d"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# {name}\n\nA worker holds a lease.\n")
    up = Running(tmp_path, "examples.app", DOCUMENTS.read_text())
    try:
        yield up
    finally:
        up.stop()


def descendants(pid: int) -> list[int]:
    children = living_children(pid)
    return [*children, *(below for child in children for below in descendants(child))]


def living_children(pid: int) -> list[int]:
    """Of all of its threads."""
    with suppress(OSError):  # it has ended meanwhile
        told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [child for child in map(int, " ".join(told).split()) if is_alive(child)]
    return []


def told(pid: int, what: str) -> str:
    """Words of its command line or of its environment."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace").replace("\0", " ")
    return ""


def text_at(url: str) -> str:
    return httpx.get(url, timeout=scaled(20)).text


def test_a_run_of_a_first_worker_that_is_killed_comes_again_at_once(running: Running) -> None:
    """It was there before its jobs, in an app whose code guards none."""
    running.schedule("long.yaml", "jobs: {long: {task: tiny.slow, every: 24h, lease_ttl: 2h}}")
    wait_until(lambda: running.knows("long"))
    ledger = running.ledger
    run = ledger.trigger(ledger.spec("long"), RunRequest(args=(600,)))
    wait_until(lambda: ledger.run(run.id).state == "running")
    os.kill(running.child("-n", "default@"), signal.SIGKILL)
    wait_until(lambda: (ledger.run(run.id).state, ledger.run(run.id).attempt) == ("running", 2), 20)
    ledger.cancel(run.id, "seen")
    (running.directory / "schedules" / "long.yaml").unlink()
    wait_until(lambda: not ledger.run(run.id).state.is_open)


def test_up_says_what_runs_restarts_what_dies_and_follows_the_files(running: Running) -> None:
    lines = running.log.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("redis "))
    said = lines[first : first + 9]
    words = [line.split()[0] for line in said]
    labels = ["redis", "beat", "workers", "stop", "then"]
    assert words == [*labels, "kill", "supervisor", "open", "page"]
    assert ":@" not in said[0]
    assert "<title>" in text_at(said[8].split()[1])  # it is said once it can be opened
    series = 'supervisor_runs_started_total{job="quick"}'
    wait_until(lambda: series in text_at(said[7].split()[1].rstrip(",")))
    assert [line for line in lines if "celery@" in line or " -------------- " in line] == []

    # A job must not find what opens the page and the API.
    holders = [pid for pid in descendants(running.process.pid) if TOKEN in told(pid, "environ")]
    assert holders == [running.child("supervisor", "serve")]

    for who in (("beat",), ("-n", "default@")):
        dead = running.child(*who)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda who=who, dead=dead: running.child(*who) not in (0, dead), 10)  # type: ignore[misc]
    seen = running.started()
    # The dead beat's lock has to run out before the new one leads, and the lease of a run at work.
    wait_until(lambda: running.started() > seen + 2, 60)

    running.schedule("apart.yaml", SERIAL)
    wait_until(lambda: running.child("-Q", "serial.apart"))
    wait_until(lambda: running.started("apart"), 20)
    running.schedule("apart.yaml", "jobs: [broken")
    wait_until(lambda: running.ledger.beat().last_reload_successful is False)
    assert running.child("-Q", "serial.apart")
    for file in (running.directory / "schedules").iterdir():  # as if its mount were gone
        file.unlink()
    wait_until(lambda: "there are no schedule files" in str(running.ledger.beat().problems))
    let_pass(2 * TOPOLOGY_SECONDS)
    assert running.child("-Q", "serial.apart")
    running.schedule("jobs.yaml", JOBS)
    wait_until(lambda: not running.child("-Q", "serial.apart"), 10)

    for options, said_why in (
        (("--no-serve",), "another server is running"),
        ((), f"cannot listen on 127.0.0.1:{running.port}"),
    ):
        second = running.start(*options)
        assert status_of(second, 30) == 1
        assert said_why in running.log
    assert running.url
    assert running.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "hangup"])
def test_up_ends_with_a_backlog_and_leaves_no_process(
    running: Running, number: signal.Signals
) -> None:
    """By Ctrl-C, or by the end of its terminal."""
    before = running.log.count("tiny.slow")
    with Celery(broker=running.url) as broker, broker.producer_or_acquire() as producer:
        for _ in range(4):
            broker.send_task("tiny.slow", [60], producer=producer)
        for _ in range(500):
            broker.send_task("tiny.quick", producer=producer)
    wait_until(lambda: running.log.count("tiny.slow") >= before + 2)
    everything = descendants(running.process.pid)
    assert len(everything) >= 6

    running.process.send_signal(number)
    assert status_of(running.process, 30) == 0
    assert [pid for pid in everything if is_alive(pid)] == []
    assert not (running.directory / ".supervisor" / "url").exists()
    for line in running.log.splitlines():
        if line.startswith("{"):
            json.loads(line)


def test_for_people_each_event_is_a_line_behind_its_process(
    tmp_path: Path, stack: ExitStack
) -> None:
    up = Running(tmp_path, environment={"SUPERVISOR_LOG_FORMAT": "console"})
    stack.callback(up.stop)
    line = re.compile(r"^worker:default \d\d:\d\d:\d\d run started quick@\S+ attempt=1$", re.M)
    wait_until(lambda: line.search(up.log), 30)
    assert re.search(r"^beat {11}\d\d:\d\d:\d\d leadership taken instance=\S+$", up.log, re.M)
    os.kill(up.child("beat"), signal.SIGKILL)
    wait_until(lambda: re.search(r"^up {13}\S+ child died child=beat pid=\d+", up.log, re.M))
    up.process.send_signal(signal.SIGINT)
    assert status_of(up.process, 30) == 0
    assert "{" not in up.log
    assert "\x1b" not in up.log


def test_up_does_not_start_for_other_hosts_without_a_token(
    tmp_path: Path, stack: ExitStack
) -> None:
    up = Running(tmp_path, options=("--host", "0.0.0.0"))
    stack.callback(up.stop)
    assert status_of(up.process, 30) != 0
    assert "set SUPERVISOR_TOKEN" in up.log
    assert not (tmp_path / ".supervisor").exists()


def test_nothing_outlives_it_when_it_is_killed(running: Running) -> None:
    everything = descendants(running.process.pid)
    running.process.kill()
    # A child with an end to report insists for a while on a ledger that is gone.
    longest = REPORT_TIMEOUT.total_seconds() + 15
    wait_until(lambda: not [pid for pid in everything if is_alive(pid)], longest)


def test_the_documents_of_the_example_can_be_searched(example: Running) -> None:
    wait_until(lambda: example.knows("documents"), 30)
    triggered = example.ledger.trigger(example.ledger.spec("documents"))
    run_id = triggered.blocked_by or triggered.id  # by the run of the schedule's own tick
    wait_until(lambda: not example.ledger.run(run_id).state.is_open, 60, every=0.1)
    run = example.ledger.run(run_id)
    assert run.state is RunState.SUCCEEDED, run.reason

    steps = {step.name: step.run for step in example.ledger.steps.records(run.id)}
    assert {step and step.state for step in steps.values()} == {RunState.SUCCEEDED}
    assert steps["words"] and steps["words"].batch == Batch(total=4, ended={"succeeded": 4})
    assert steps["build_index"] and steps["build_index"].progress
    assert steps["build_index"].progress.share == 1
    lines = [line.text for line in example.ledger.reports.lines(run.id)]
    assert {"docs/a.md: 6 words", "4 of 4 documents are in the index"} <= set(lines)

    command = [sys.executable, "-m", "examples.full_text", "lease"]
    search = subprocess.run(command, cwd=example.directory, capture_output=True, text=True)
    assert search.stdout.splitlines()[0] == "docs/a.md: a a worker holds a [lease]"
    report = json.loads((example.directory / ".supervisor" / "documents.json").read_text())
    assert report["run"] == run.id
    assert report["most_frequent"] == {"worker": 4}

    example.process.terminate()
    assert status_of(example.process, 30) == 0
