"""The processes under fire: one server, two beats, three workers; restarted when they die.

Each of them has a link of its own to the server, which can be made to hang.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import redis

from supervisor.deploy.embedded import EmbeddedServer, port_is_free
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.proxy import Proxy, proxy_to
from tests.waiting import wait_until
from tools.chaos.chronicle import Chronicle, Kind, OpenWindow
from tools.chaos.coroner import Coroner
from tools.chaos.jobs import JOBS, POOL, QUEUES, schedule_file
from tools.chaos.member import Member

PROJECT = Path(__file__).parents[2]

BEATS = 2
WORKERS = 3

#: One worker alone can work for all jobs at once: no run waits for a process.
CHILDREN = sum(job.at_once for job in JOBS)

#: Below the ports that the kernel gives to clients: none of them takes it while the server is down.
PORTS = range(20_000, 32_000)

#: What a worker waits for its messages with. They still come while it gets no other reply, as from
#: a broker of its own: what it then asks of the ledger is answered late.
MESSAGES = b"BRPOP"

#: How long an init system waits before it restarts what died.
RESTART_SECONDS = (0.5, 2.0)


class Cluster:
    """`package`: the directory with the package that the processes import.

    older_since: of which moment the ledger's state is since it came back, until that is noted.
    """

    def __init__(self, directory: Path, rng: random.Random, package: Path = PROJECT) -> None:
        self.directory = directory
        self.package = package
        self.witness = directory / "witness.jsonl"
        self.messages = directory / "messages.jsonl"
        self.version = 0
        self.rng = rng
        self.agenda = Agenda()
        self.chronicle = Chronicle()
        self.server = server_on_a_quiet_port(directory / "valkey", rng)
        self.coroner = Coroner(self._pool)
        self.beats: list[Member] = []
        self.workers: list[Member] = []
        self.is_hung = False
        self.is_being_copied = False
        self.older_since: float | None = None
        self.redelivery = Redelivery(self.server.url, QUEUES.split(","), rng)
        self._links = ExitStack()
        self._others: list[EmbeddedServer] = []
        self._replicas = count()
        self._no_worker: OpenWindow | None = None

    @property
    def members(self) -> list[Member]:
        return [*self.beats, *self.workers]

    @property
    def is_whole(self) -> bool:
        """Everybody does their work, and nothing is planned that changes it."""
        ready = self.answers and all(member.is_ready for member in self.members)
        return ready and self.agenda.is_empty

    @property
    def answers(self) -> bool:
        return self.server.is_alive and not self.is_hung

    def start(self) -> None:
        """Returns when all of them do their work."""
        self.server.start()
        (self.directory / "schedules").mkdir()
        self.schedule()
        self.beats = [self._beat(f"beat{n}") for n in range(BEATS)]
        self.workers = [self._worker(f"worker{n}") for n in range(WORKERS)]
        self.coroner.start()
        for member in self.members:
            member.start()
        wait_until(lambda: all(member.is_ready for member in self.members), 60)

    def schedule(self) -> None:
        """Writes the schedule file, of this version, in one step."""
        whole = self.directory / "jobs.yaml"
        whole.write_text(schedule_file(self.version))
        whole.replace(self.directory / "schedules" / "jobs.yaml")

    def open_ledger(self) -> Ledger:
        return Ledger.open(Settings(redis_url=self.server.url))

    def restart_the_dead(self) -> None:
        if not self.coroner.is_alive():
            raise RuntimeError("the coroner has died: when others did is not known any more")
        for member in self.members:
            if not member.is_alive and not member.restart_planned:
                member.restart_planned = True
                if not member.was_struck:
                    self.chronicle.unasked[member.name] += 1
                    self.chronicle.ended(member.pid)
                self.agenda.later(self.rng.uniform(*RESTART_SECONDS), lambda m=member: restart(m))  # type: ignore[misc]

    def look_for_workers(self) -> None:
        """While all of them are starting, nothing can begin."""
        is_any_ready = any(worker.is_ready for worker in self.workers)
        if is_any_ready and self._no_worker is not None:
            self.chronicle.closed(self._no_worker)
            self._no_worker = None
        elif not is_any_ready and self._no_worker is None:
            self._no_worker = self.chronicle.opened(Kind.NO_WORKER)

    def hang(self) -> None:
        self.is_hung = True
        os.kill(self.server.pid or 0, signal.SIGSTOP)

    def wake(self) -> None:
        self.is_hung = False
        os.kill(self.server.pid or 0, signal.SIGCONT)

    def restore(self, copy: Path) -> None:
        """The server starts with the data of this copy of its directory."""
        data = "appendonlydir"
        shutil.rmtree(self.server.directory / data)
        shutil.copytree(copy / data, self.server.directory / data)
        self.server.start()

    def replica(self, way: Proxy) -> EmbeddedServer:
        """A server that follows the present one by this way, with all that it had to catch up."""
        number = next(self._replicas)
        directory = self.directory / f"replica{number}"
        directory.mkdir(mode=0o700)
        shutil.copy(self.server.directory / "password", directory)
        made = EmbeddedServer(directory)
        made.start()
        self._others.append(made)
        password = (directory / "password").read_text()
        with redis.Redis.from_url(self.server.url, decode_responses=True) as primary:
            primary.config_set("repl-diskless-sync-delay", 0)
        with redis.Redis.from_url(made.url, decode_responses=True) as client:
            client.config_set("masterauth", password)
            client.replicaof(*way.url.rpartition("@")[2].partition("/")[0].split(":"))
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", 5)
            # What was written while it got the copy comes only now.
            with redis.Redis.from_url(self.server.url, decode_responses=True) as primary:
                offset = primary.info("replication")["master_repl_offset"]
            wait_until(lambda: client.info("replication")["slave_repl_offset"] >= offset, 10)
        return made

    def promote(self, replica: EmbeddedServer) -> None:
        """It takes the address of the one before, which has been killed."""
        port = (self.server.directory / "port").read_text()
        with redis.Redis.from_url(replica.url) as client:
            client.replicaof("NO", "ONE")
            client.config_set("port", port)
        (replica.directory / "port").write_text(port)
        self._others.append(self.server)
        self._others.remove(replica)
        self.server = replica

    def stop_members(self, timeout_seconds: float = 10) -> None:
        """A warm end, beats first, for those who can."""
        self.redelivery.stop()
        for member in self.members:
            member.thaw()
            member.join()
            member.send(signal.SIGTERM)
        for member in self.members:
            member.reap(timeout_seconds)

    def destroy(self) -> None:
        """Nothing that was started here outlives this."""
        self.redelivery.stop()
        if self.is_hung:
            self.wake()
        for member in self.members:
            member.send(signal.SIGKILL)
            member.thaw()
            member.reap(5)
        if self.coroner.is_alive():
            self.coroner.stop()
        self.coroner.kill_survivors()
        self._links.close()
        for server in (*self._others, self.server):
            server.stop()

    def _pool(self) -> Iterable[int]:
        return [pid for worker in self.workers for pid in (worker.pid, *worker.children()) if pid]

    def _beat(self, name: str) -> Member:
        return self._member(
            name, ("beat", "-l", "info"), (b"leadership held elsewhere", b"leadership taken")
        )

    def _worker(self, name: str) -> Member:
        options = ("-n", f"{name}@%h", "-Q", QUEUES, "-c", str(CHILDREN), "-l", "info", "-P", POOL)
        return self._member(name, ("worker", *options), (b" ready.",))

    def _member(self, name: str, arguments: tuple[str, ...], ready: tuple[bytes, ...]) -> Member:
        way = self._links.enter_context(proxy_to(self.server.url))
        way.spared = MESSAGES
        environment = {
            **{key: v for key, v in os.environ.items() if not key.startswith("SUPERVISOR_")},
            "CHAOS_BROKER": way.url,
            "CHAOS_PACKAGE": str(self.package),
            "PYTHONPATH": os.pathsep.join(map(str, (self.package, PROJECT))),
            "SUPERVISOR_LOG_FORMAT": "json",
            # Of the dead, some are known by their proof of life, and some by their leases alone.
            "SUPERVISOR_LOCK_DIR": "" if name == "worker0" else str(self.directory / "locks"),
        }
        return Member(name, arguments, ready, self.directory, environment, way)


def server_on_a_quiet_port(directory: Path, rng: random.Random) -> EmbeddedServer:
    directory.mkdir(mode=0o700)
    port = next(port for port in iter(lambda: rng.choice(PORTS), None) if port_is_free(port))
    (directory / "port").write_text(str(port))
    return EmbeddedServer(directory)


def restart(member: Member) -> None:
    member.restart_planned = False
    member.start()


class Agenda:
    """What is to be done later, in the one thread that starts processes."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._entries, (time.monotonic() + seconds, next(self._order), action))

    def run_due(self) -> None:
        now = time.monotonic()
        while self._entries and self._entries[0][0] <= now:
            heapq.heappop(self._entries)[2]()

    @property
    def is_empty(self) -> bool:
        return not self._entries


TAKE_SECONDS = 3

#: After the first copy: while the run is at work, or once it has ended.
SECOND_COPY_SECONDS = ((0.3, 2.0), (4.0, 9.0))


class Redelivery:
    """A broker that brings messages twice, or loses them: a consumer of its own beside the workers.

    It takes the next message of one of the queues, which a worker would have taken. runs: of the
    messages that it brought twice.
    """

    def __init__(self, url: str, queues: Sequence[str], rng: random.Random) -> None:
        self._url = url
        self._queues = queues
        self._rng = rng
        self.runs: set[str] = set()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def twice(self) -> None:
        """The message is brought at once, and again some seconds later."""
        bounds = self._rng.choice(SECOND_COPY_SECONDS)
        self._start((0.0, self._rng.uniform(*bounds)))

    def never(self) -> None:
        """The message is lost between broker and worker."""
        self._start(())

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * TAKE_SECONDS)

    def _start(self, delays: tuple[float, ...]) -> None:
        thread = threading.Thread(target=self._redeliver, args=(delays,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _redeliver(self, delays: tuple[float, ...]) -> None:
        with (
            redis.Redis.from_url(self._url, socket_timeout=2 * TAKE_SECONDS) as client,
            suppress(redis.RedisError),  # a broker that died with it has lost it
        ):
            taken = client.brpop(list(self._queues), TAKE_SECONDS)
            if not taken:
                return
            queue, message = taken
            if len(delays) > 1:
                self.runs.add(json.loads(message)["headers"]["id"])
            for delay in delays:
                self._stopping.wait(delay)
                client.rpush(queue, message)
