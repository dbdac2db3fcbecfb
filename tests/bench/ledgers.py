"""`python -m tests.bench.ledgers`: what 1, 2 and 4 ledgers emit together in one second's time.

Each has a beat and jobs of its own. Once they are servers of their own that are their brokers too;
once they are deployments on one Redis Cluster, by their prefixes, with a broker each elsewhere. It
prints a table, and what one call of a function takes on either.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Grant
from supervisor.settings import DEFAULT_PREFIX, Settings
from tests.acceptance.clusters import MASTERS, Cluster
from tests.bench import machine
from tests.bench.fleet import cpu_seconds
from tests.bench.sides import Process, Side, until

CALLS, RUNS = 2_000, 1_000


@dataclass
class Shard(Side):
    """url: of its broker. at: where its ledger is."""

    at: Settings = field(default_factory=Settings)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.at)

    @property
    def environment(self) -> dict[str, str]:
        own = {"SUPERVISOR_REDIS_URL": self.at.redis_url, "SUPERVISOR_PREFIX": self.at.prefix}
        return {**super().environment, **own}


@contextmanager
def shards(directory: Path, number: int, *, on_cluster: bool) -> Iterator[list[Shard]]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(EmbeddedServer(directory / f"server{n}")) for n in range(number)
        ]
        prefixes, cluster = [DEFAULT_PREFIX] * number, None
        if on_cluster:
            cluster, prefixes = Cluster(directory / "cluster"), spread(number)
            stack.callback(cluster.stop)
            cluster.start()
        taking_part = [
            Shard(
                *("ours", "due", directory / f"shard{n}", server.url),
                at=Settings(cluster.url if cluster else server.url, prefix),
            )
            for n, (server, prefix) in enumerate(zip(servers, prefixes, strict=True))
        ]
        for shard in taking_part:
            stack.callback(shard.stop)
        yield taking_part


def spread(number: int) -> list[str]:
    """Prefixes that lie on the masters in turn."""
    each = REDIS_CLUSTER_HASH_SLOTS / MASTERS
    turns = count()
    wanted = next(turns) % MASTERS
    found = []
    for name in (f"shard{n}" for n in count()):
        if key_slot(f"{{{name}}}".encode()) // each == wanted:
            found.append(name)
            wanted = next(turns) % MASTERS
        if len(found) == number:
            return found
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Figures:
    """a_second: ticks of all ledgers, until the last is queued. The others are microseconds of a
    processor: of a beat and of a ledger's server for a tick, with what is prepared before it is
    due, and of the server for the begin and the end of a run.
    """

    a_second: float
    of_beat: float
    of_server: float
    of_run: float


def emitted(taking_part: list[Shard], jobs: int) -> Figures:
    due = math.ceil(time.time()) + 40 + 8 * len(taking_part) * (1 + jobs // 1000)
    beats = []
    for shard in taking_part:
        shard.asked(f"fill('due.nothing', [{due}] * {jobs})")
        beats.append(shard.celery("beat", "-l", "info"))
    ledgers = [shard.ledger for shard in taking_part]
    for ledger in ledgers:
        until(lambda ledger=ledger: ledger.client.hlen(ledger.keys.jobs) == jobs, 300, every=0.2)
    assert time.time() < due - 1, "the machine is too busy"
    beat_before, server_before = cpu_of(beats), sum(map(cpu_of_server, ledgers))
    clients = [shard.client for shard in taking_part]
    last = until(
        lambda: all(client.llen("celery") >= jobs for client in clients),
        due - time.time() + 300,
        every=0.01,
    )
    ticks = jobs * len(taking_part)
    return Figures(
        ticks / (last - due),
        1e6 * (cpu_of(beats) - beat_before) / ticks,
        1e6 * (sum(map(cpu_of_server, ledgers)) - server_before) / ticks,
        of_run(ledgers[0]),
    )


def of_run(ledger: Ledger) -> float:
    ran = ledger.client.zrange(ledger.keys.sent, 0, RUNS - 1)
    before = cpu_of_server(ledger)
    for run_id in ran:
        assert isinstance(ledger.begin(run_id, f"token {run_id}", "bench"), Grant)
        ledger.finish(run_id, f"token {run_id}", RunState.SUCCEEDED)
    return 1e6 * (cpu_of_server(ledger) - before) / len(ran)


def cpu_of(beats: list[Process]) -> float:
    return sum(cpu_seconds(beat.pid) for beat in beats)


def cpu_of_server(ledger: Ledger) -> float:
    """Seconds."""
    info = ledger.client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def milliseconds_a_call(shard: Shard) -> float:
    """Median of a function that reads and writes a little."""
    ledger = shard.ledger
    ledger.drains.drain("bench")
    taken = []
    for _ in range(CALLS):
        started = time.perf_counter()
        ledger.drains.drain("bench")
        taken.append(time.perf_counter() - started)
    ledger.drains.undrain("bench")
    return 1000 * median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for turn in range(options.rounds):
        for number, on_cluster in ((n, where) for n in (1, 2, 4) for where in (False, True)):
            with (
                tempfile.TemporaryDirectory() as directory,
                shards(Path(directory), number, on_cluster=on_cluster) as taking_part,
            ):
                load = machine.load()
                a_call = milliseconds_a_call(taking_part[0])
                found = emitted(taking_part, options.jobs)
            where = "a cluster, brokers elsewhere" if on_cluster else "servers of their own"
            sys.stdout.write(
                f"round {turn + 1}: {number} on {where}: {found.a_second:.0f} a second; us of a"
                f" processor: {found.of_beat:.0f} of beat, {found.of_server:.0f} of the server a"
                f" tick, {found.of_run:.0f} a run; {a_call:.3f} ms a call; load {load} before\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
