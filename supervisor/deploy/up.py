"""`supervisor up`: the whole product as one foreground process.

1. Start the embedded server, or use the one that was named; write its address to `.supervisor/`.
2. Start beat, the default worker, a worker for each serial queue, and the HTTP server, each in a
   process group of its own: Ctrl-C in the terminal reaches only this process.
3. Five times a second, restart children that died. Every second, start and stop workers as serial
   queues are added to the schedule files or removed. A broken file changes nothing.
4. On SIGTERM or Ctrl-C everything ends within ten seconds, the server last. When this process
   itself is killed, the kernel sends a signal to the children.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from supervisor.deploy.children import Child, ChildSpec, end_all
from supervisor.deploy.embedded import EmbeddedServer, write_private
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files.schedule_files import load
from supervisor.job.topology import Topology
from supervisor.ledger.ledger import Ledger
from supervisor.logs import LOG_FORMAT, get_logger, wants_json
from supervisor.settings import DEFAULT_PREFIX, TOKEN, URL_FILE, Settings

#: Of a warm shutdown, and until the end of a cold one: well under the promised ten seconds.
WARM_SECONDS = 4.0
COLD_SECONDS = 7.0

POLL_SECONDS = 0.2

SERVE = "serve"
TOPOLOGY_SECONDS = 1.0

log = get_logger("supervisor.up")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """redis_url: a server that runs already; None starts the embedded one."""

    app: str
    schedules: Path
    default_queue: str
    redis_url: str | None
    host: str
    port: int
    proxied: bool
    concurrency: int | None
    log_level: str
    serve: bool = True
    prefix: str = DEFAULT_PREFIX


class Up:
    def __init__(self, options: UpOptions, environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        self._children: dict[str, Child] = {}
        self._stopping = threading.Event()
        self._server = None if options.redis_url else EmbeddedServer(URL_FILE.parent / "valkey")

    def run(self) -> None:
        """Returns when everything has ended; raises EmbeddedServerFailed when nothing started."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        ended_well = not URL_FILE.exists()
        url = self._options.redis_url or (self._server.start() if self._server else "")
        if self._server and ended_well:
            ledger = Ledger.open(Settings(url, self._options.prefix))
            # No run of the last time is alive: no lease has to be waited for.
            ledger.acknowledge_server()
            # The server belongs to this directory, and to whichever app is started in it.
            ledger.forget_owner()
        URL_FILE.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(URL_FILE, url)
        try:
            self._supervise(self._environment(url))
        finally:
            end_all(list(self._children.values()), WARM_SECONDS, COLD_SECONDS)
            if self._server:
                self._server.stop()
            URL_FILE.unlink(missing_ok=True)

    def _supervise(self, environment: Mapping[str, str]) -> None:
        # With files that are broken from the start, everything else runs.
        topology = self._read_topology() or Topology.of((), self._options.default_queue)
        self._follow(topology, environment)
        self._print_summary(topology)
        next_look = time.monotonic() + TOPOLOGY_SECONDS
        while not self._stopping.wait(POLL_SECONDS):
            if self._server and not self._server.is_alive:
                log.error("embedded server died")
                self._server.start()
            for child in self._children.values():
                child.keep_running()
            if time.monotonic() > next_look:
                topology = self._read_topology() or topology
                self._follow(topology, environment)
                next_look = time.monotonic() + TOPOLOGY_SECONDS

    def _read_topology(self) -> Topology | None:
        """None when the files are broken; beat reports that."""
        try:
            specs = load(self._options.schedules, prefix=self._options.prefix).specs.values()
        except ScheduleFilesInvalid:
            return None
        return Topology.of(specs, self._options.default_queue)

    def _follow(self, topology: Topology, environment: Mapping[str, str]) -> None:
        wanted = {spec.name: spec for spec in self._wanted(topology)}
        surplus = [child for name, child in self._children.items() if name not in wanted]
        for child in surplus:
            log.info("worker no longer needed", child=child.spec.name)
            del self._children[child.spec.name]
        end_all(surplus, WARM_SECONDS, COLD_SECONDS)
        for name, spec in wanted.items():
            running = self._children.get(name)
            if running is not None and running.spec != spec:
                end_all([running], WARM_SECONDS, COLD_SECONDS)
                running = None
            if running is None:
                log.debug("child started", child=name)
                self._children[name] = Child(spec, environment_of(name, environment))
                self._children[name].start()

    def _wanted(self, topology: Topology) -> Iterator[ChildSpec]:
        yield self._celery("beat", ("celery", "-A", self._options.app, "beat"), signal.SIGKILL)
        if self._options.serve:
            address = ["--host", self._options.host, "--port", str(self._options.port)]
            address += ["--proxied"] if self._options.proxied else []
            yield ChildSpec(SERVE, (sys.executable, "-m", "supervisor", "serve", *address))
        for worker in topology.workers:
            command = worker.command(self._options.app, self._options.concurrency)
            yield self._celery(f"worker:{worker.name}", command, signal.SIGQUIT)

    def _celery(self, name: str, command: Sequence[str], cold: signal.Signals) -> ChildSpec:
        level = ("--loglevel", self._options.log_level)
        return ChildSpec(name, (sys.executable, "-m", *command, *level), cold)

    def _environment(self, url: str) -> dict[str, str]:
        own = {
            "SUPERVISOR_REDIS_URL": url,
            "SUPERVISOR_SCHEDULES": str(self._options.schedules.absolute()),
            "SUPERVISOR_APP": self._options.app,
            LOG_FORMAT: "json" if wants_json() else "console",
        }
        # The embedded server is also the broker; the app's own may not be reachable.
        broker = {"CELERY_BROKER_URL": url} if self._server else {}
        return {**self._environ, **own, **broker}

    def _print_summary(self, topology: Topology) -> None:
        options = self._options
        workers = ", ".join(f"{w.name} ({', '.join(w.queues)})" for w in topology.workers)
        host = f"[{options.host}]" if ":" in options.host else options.host
        page = f"http://{host}:{options.port}/" if options.serve else "not served"
        for line in (
            f"redis      {self._server.address if self._server else 'the one that was named'}",
            f"beat       emits what {options.schedules}/ names; edits take effect at once",
            f"workers    {workers}",
            f"page       {page}",
            f"metrics    {page}metrics" if options.serve else "metrics    not served",
            f"stop       Ctrl-C, or kill {os.getpid()}",
        ):
            print(line, flush=True)  # noqa: T201  (for the person who starts it, not a log)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._stopping.set()


def environment_of(child: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The token gives access to the page and the API: code of jobs must not see it."""
    if child == SERVE:
        return environment
    return {name: value for name, value in environment.items() if name != TOKEN}
