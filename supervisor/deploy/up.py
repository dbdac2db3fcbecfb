"""`supervisor up`: all programs under one foreground process.

1. Start the embedded server, or use the given one; write its address to `.supervisor/`.
2. Start beat, the default worker, a worker for each serial queue, and the HTTP server, each in a
   process group of its own: Ctrl-C in the terminal reaches only this process.
3. Once the page can be opened, print what runs, and the address of the page.
4. Five times a second, restart children that died. Every second, start and stop workers as serial
   queues are added to the schedule files or removed. A file with problems changes nothing.
5. On SIGTERM, on Ctrl-C, or when its terminal is closed, everything ends within ten seconds, the
   server last. When this process itself is killed, the kernel sends a signal to the children.

On a terminal, each event of the children is a short line (screen.py); a file or a pipe gets their
JSON lines as they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import cast

import click

from supervisor.catalog.schedule_files import load
from supervisor.deploy.embedded import EmbeddedServer, write_private
from supervisor.deploy.screen import Screen
from supervisor.errors import ScheduleFilesInvalid
from supervisor.job.spec import JobSpec
from supervisor.job.topology import Topology
from supervisor.ledger.ledger import Ledger
from supervisor.logs import LOG_FORMAT, get_logger
from supervisor.process import die_with_parent, make_private
from supervisor.settings import DEFAULT_PREFIX, TOKEN, URL_FILE, Settings

#: A warm shutdown may take this long; a cold one ends well within the promised ten seconds.
WARM_SECONDS = 4.0
COLD_SECONDS = 7.0

POLL_SECONDS = 0.2

log = get_logger("supervisor.up")

SERVE = "serve"
TOPOLOGY_SECONDS = 1.0

#: The summary is printed after this time at the latest.
SUMMARY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    app: str
    schedules: Path
    topology: Callable[[Iterable[JobSpec]], Topology]

    redis_url: str | None
    """Of a server that runs already; None to start the embedded one."""

    host: str
    port: int
    proxied: bool
    concurrency: int | None
    log_level: str
    serve: bool = True
    prefix: str = DEFAULT_PREFIX


class Up:
    """screen: shows what the children log; without one they write JSON lines to our own streams."""

    def __init__(
        self, options: UpOptions, environ: Mapping[str, str], screen: Screen | None = None
    ) -> None:
        self._options = options
        self._screen = screen
        self._environ = environ
        self._children: dict[str, Program] = {}
        self._stopping = threading.Event()
        self._server = None if options.redis_url else EmbeddedServer(URL_FILE.parent / "valkey")

    def run(self) -> None:
        """Returns when everything has ended. Raises SupervisorError if nothing could be started."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(signal.SIGHUP, self._stop)
        ended_well = not URL_FILE.exists()
        url = self._options.redis_url or (self._server.start() if self._server else "")
        if self._server and ended_well:
            ledger = Ledger.open(Settings(url, self._options.prefix))
            # No run of the last session is alive: no lease has to expire first.
            ledger.acknowledge_server()
            # The server belongs to this directory, and to whichever app is started in it.
            ledger.forget_owner()
        make_private(URL_FILE.parent)
        write_private(URL_FILE, url)
        try:
            self._supervise(self._environment(url))
        finally:
            end_all(list(self._children.values()), WARM_SECONDS, COLD_SECONDS)
            if self._server:
                self._server.stop()
            URL_FILE.unlink(missing_ok=True)

    def _supervise(self, environment: Mapping[str, str]) -> None:
        # If the files have problems from the start, everything else runs.
        topology = self._read_topology() or self._options.topology(())
        self._follow(topology, environment)
        next_check = time.monotonic() + TOPOLOGY_SECONDS
        summary_by: float | None = time.monotonic() + SUMMARY_SECONDS
        while not self._stopping.wait(POLL_SECONDS):
            if self._server and not self._server.is_alive:
                log.error("embedded server died")
                self._server.start()
            for child in self._children.values():
                child.keep_running()
            if summary_by and (self._is_served() or time.monotonic() > summary_by):
                self._print_summary(topology)
                summary_by = None
            if time.monotonic() > next_check:
                topology = self._read_topology() or topology
                self._follow(topology, environment)
                next_check = time.monotonic() + TOPOLOGY_SECONDS

    def _read_topology(self) -> Topology | None:
        """The topology; None if the files have problems or are gone, which beat reports."""
        try:
            jobs = load(self._options.schedules, prefix=self._options.prefix)
        except ScheduleFilesInvalid:
            return None
        if not jobs.files:
            return None
        return self._options.topology(jobs.specs.values())

    def _follow(self, topology: Topology, environment: Mapping[str, str]) -> None:
        specs = {spec.name: spec for spec in self._specs(topology)}
        surplus = [child for name, child in self._children.items() if name not in specs]
        for child in surplus:
            log.info("worker removed", child=child.spec.name)
            del self._children[child.spec.name]
        end_all(surplus, WARM_SECONDS, COLD_SECONDS)
        for name, spec in specs.items():
            running = self._children.get(name)
            if running is not None and running.spec != spec:
                end_all([running], WARM_SECONDS, COLD_SECONDS)
                running = None
            if running is None:
                log.debug("child started", child=name)
                self._children[name] = Program(
                    spec, environment_of(name, environment), self._screen
                )
                self._children[name].start()

    def _specs(self, topology: Topology) -> Iterator[ProgramSpec]:
        yield self._celery("beat", ("celery", "-A", self._options.app, "beat"), signal.SIGKILL)
        if self._options.serve:
            address = ["--host", self._options.host, "--port", str(self._options.port)]
            address += ["--proxied"] if self._options.proxied else []
            yield ProgramSpec(SERVE, (sys.executable, "-m", "supervisor", "serve", *address))
        for worker in topology.workers:
            command = worker.command(self._options.app, self._options.concurrency)
            yield self._celery(f"worker:{worker.name}", command, signal.SIGQUIT)

    def _celery(self, name: str, command: Sequence[str], cold: signal.Signals) -> ProgramSpec:
        celery, *words = command
        level = ("--loglevel", self._options.log_level)
        # Quiet: without the banner.
        return ProgramSpec(name, (sys.executable, "-m", celery, "--quiet", *words, *level), cold)

    def _environment(self, url: str) -> dict[str, str]:
        own = {
            "SUPERVISOR_REDIS_URL": url,
            "SUPERVISOR_SCHEDULES": str(self._options.schedules.absolute()),
            "SUPERVISOR_APP": self._options.app,
            LOG_FORMAT: "json",
        }
        # The embedded server is also the broker; the app's own may not be reachable.
        broker = {"CELERY_BROKER_URL": url} if self._server else {}
        return {**self._environ, **own, **broker}

    def _is_served(self) -> bool:
        """Whether the page can be opened, if there is one."""
        if not self._options.serve:
            return True
        with contextlib.suppress(OSError):
            socket.create_connection((self._options.host, self._options.port), 0.2).close()
            return True
        return False

    def _print_summary(self, topology: Topology) -> None:
        options = self._options
        workers = ", ".join(f"{w.name} ({', '.join(w.queues)})" for w in topology.workers)
        host = f"[{options.host}]" if ":" in options.host else options.host
        page = f"http://{host}:{options.port}/"
        worker = next(child for name, child in self._children.items() if "worker" in name)
        lines = (
            f"redis      {self._server.address if self._server else 'your own'}",
            f"beat       runs the jobs in {options.schedules}/",
            f"workers    {workers}",
            f"stop       Ctrl-C, or kill {os.getpid()}",
            f"then try   edit a file in {options.schedules}/: it takes effect at once",
            f"           kill -9 {worker.pid}, a worker: a new one starts its runs again",
            f"           supervisor runs, in another terminal in {Path.cwd()}",
            *([f"           open {page}metrics, for Prometheus"] if options.serve else []),
            f"page       {click.style(page, bold=True) if options.serve else 'not served'}",
        )
        if self._screen:
            self._screen.say(lines)
        else:
            click.echo("\n".join(lines))

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._stopping.set()


def environment_of(child: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a child. Only the HTTP server gets the token of its page and its API."""
    if child == SERVE:
        return environment
    return {name: value for name, value in environment.items() if name != TOKEN}


# A program that `up` keeps running: it starts it, restarts it with back-off, and ends it.


#: A child that lived this long had started well: it restarts at once when it dies.
STARTED_WELL_SECONDS = 60
LONGEST_BACKOFF_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program to run. `cold_signal` ends it if it takes too long to end on SIGTERM."""

    name: str
    command: tuple[str, ...]
    cold_signal: signal.Signals = signal.SIGKILL


class Program:
    """A child process in a process group of its own. Only the main thread may start it: the kernel
    ends it with the thread that started it."""

    def __init__(
        self, spec: ProgramSpec, environment: Mapping[str, str], screen: Screen | None = None
    ) -> None:
        self.spec = spec
        self._screen = screen
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restart_at = 0.0
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            self.spec.command,
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._screen else None,
            stderr=subprocess.STDOUT if self._screen else None,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        if self._screen:
            output = cast("Iterable[bytes]", self._process.stdout)
            follow = self._screen.follow
            threading.Thread(target=follow, args=(self.spec.name, output), daemon=True).start()

    def keep_running(self) -> None:
        """Restarts a child that died: at once the first time, then after 1, 2, 4 ... 30 seconds."""
        if self.is_alive:
            return
        now = time.monotonic()
        if self._process is not None:
            self._bury(now)
        if self._process is None and now >= self._restart_at:
            self.start()
            log.info("child restarted", child=self.spec.name, pid=self.pid)

    def send(self, number: signal.Signals) -> None:
        if self.is_alive and self._process:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Kills what is left of the child and of the processes that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _bury(self, now: float) -> None:
        assert self._process is not None
        started_well = now - self._started_at > STARTED_WELL_SECONDS
        self._deaths = 1 if started_well else self._deaths + 1
        backoff = 0 if self._deaths == 1 else min(2 ** (self._deaths - 2), LONGEST_BACKOFF_SECONDS)
        self._restart_at = now + backoff
        log.error(
            "child died",
            child=self.spec.name,
            pid=self._process.pid,
            exit_status=self._process.returncode,
            restart_in_seconds=backoff,
        )
        self.kill_group()
        self._process = None


def end_all(children: Sequence[Program], warm_seconds: float, cold_seconds: float) -> None:
    """SIGTERM to all; after `warm_seconds` each one's cold signal; after `cold_seconds` SIGKILL.

    Then it kills what is left of their process groups.
    """
    started = time.monotonic()
    for child in children:
        child.send(signal.SIGTERM)
    if not wait_for(children, started + warm_seconds):
        for child in children:
            child.send(child.spec.cold_signal)
        wait_for(children, started + cold_seconds)
    for child in children:
        child.kill_group()


def wait_for(children: Sequence[Program], deadline: float) -> bool:
    while any(child.is_alive for child in children):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
