"""The processes under fire: one server, two beats, three workers; restarted when they die."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path

from supervisor.ledger.runs import Ledger
from supervisor.local.embedded import EmbeddedServer, port_is_free
from supervisor.settings import Settings
from tests.chaos.agenda import Agenda
from tests.chaos.chronicle import Chronicle
from tests.chaos.coroner import Coroner
from tests.chaos.jobs import QUEUES, schedule_file
from tests.chaos.member import Member
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]

BEATS = 2
WORKERS = 3

#: One worker alone can work for all jobs at once: nobody waits for a process.
CHILDREN = 6

#: Below the ports that the kernel gives to clients: none of them takes it while the server is down.
PORTS = range(20_000, 32_000)

#: How long an init system waits before it restarts what died.
RESTART_SECONDS = (0.5, 2.0)


class Cluster:
    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.witness = directory / "witness.jsonl"
        self.rng = rng
        self.agenda = Agenda()
        self.chronicle = Chronicle()
        self.server = server_on_a_quiet_port(directory / "valkey", rng)
        self.coroner = Coroner(self._pool)
        self.beats: list[Member] = []
        self.workers: list[Member] = []

    @property
    def members(self) -> list[Member]:
        return [*self.beats, *self.workers]

    @property
    def is_whole(self) -> bool:
        """Everybody does their work, and nothing is planned that changes it."""
        ready = self.server.is_alive and all(member.is_ready for member in self.members)
        return ready and self.agenda.is_empty

    def start(self) -> None:
        """Returns when all of them do their work."""
        self.server.start()
        schedules = self.directory / "schedules"
        schedules.mkdir()
        (schedules / "jobs.yaml").write_text(schedule_file())
        self.beats = [self._beat(f"beat{n}") for n in range(BEATS)]
        self.workers = [self._worker(f"worker{n}") for n in range(WORKERS)]
        self.coroner.start()
        for member in self.members:
            member.start()
        wait_until(lambda: all(member.is_ready for member in self.members), 60)

    def open_ledger(self) -> Ledger:
        return Ledger.open(Settings(redis_url=self.server.url))

    def restart_the_dead(self) -> None:
        for member in self.members:
            if not member.is_alive and not member.restart_planned:
                member.restart_planned = True
                if not member.was_struck:
                    self.chronicle.unasked[member.name] += 1
                self.agenda.later(self.rng.uniform(*RESTART_SECONDS), lambda m=member: restart(m))  # type: ignore[misc]

    def stop_members(self, patience_seconds: float = 10) -> None:
        """A warm end, beats first, for those who can."""
        for member in self.members:
            member.thaw()
            member.send(signal.SIGTERM)
        for member in self.members:
            member.reap(patience_seconds)

    def destroy(self) -> None:
        """Nothing that was started here outlives this."""
        for member in self.members:
            member.send(signal.SIGKILL)
            member.thaw()
            member.reap(5)
        if self.coroner.is_alive():
            self.coroner.stop()
        self.coroner.kill_survivors()
        self.server.stop()

    def _pool(self) -> Iterable[int]:
        return [pid for worker in self.workers for pid in worker.children()]

    def _beat(self, name: str) -> Member:
        return self._member(name, ("beat", "-l", "info"), (b"standing by", b"leading"))

    def _worker(self, name: str) -> Member:
        options = ("-n", f"{name}@%h", "-Q", QUEUES, "-c", str(CHILDREN), "-l", "info")
        return self._member(name, ("worker", *options), (b" ready.",))

    def _member(self, name: str, arguments: tuple[str, ...], ready: tuple[bytes, ...]) -> Member:
        environment = {
            **{key: v for key, v in os.environ.items() if not key.startswith("SUPERVISOR_")},
            "CHAOS_BROKER": self.server.url,
            "PYTHONPATH": str(PROJECT),
            "SUPERVISOR_LOG_FORMAT": "json",
        }
        return Member(name, arguments, ready, self.directory, environment)


def server_on_a_quiet_port(directory: Path, rng: random.Random) -> EmbeddedServer:
    directory.mkdir(mode=0o700)
    port = next(port for port in iter(lambda: rng.choice(PORTS), None) if port_is_free(port))
    (directory / "port").write_text(str(port))
    return EmbeddedServer(directory)


def restart(member: Member) -> None:
    member.restart_planned = False
    member.start()
