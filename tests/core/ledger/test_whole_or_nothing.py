"""A call that queues a run does all of it or nothing: on a server that refuses, or dies in it.

The server's own client is the witness: which runs are queued, and which messages lie in queues.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import redis
from redis.client import NEVER_DECODE

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.settings import Settings
from supervisor.store.failures import RedisError
from supervisor.testing import lease_runs_out
from tests.acceptance.nodes import SERVER, Node, answers
from tests.core.sending.test_messages import app_on
from tests.jobs import at_work, begin, job, run_id, ticks, with_messages
from tests.programs import needed
from tests.queues import take_all
from tests.waiting import wait_until

#: What was replied to is in the append-only file, which is never written anew.
CONFIGURATION = SERVER + "appendfsync always\nauto-aof-rewrite-percentage 0\n"

#: The last file of those that are the append-only file.
APPENDED = Path("appendonlydir") / "appendonly.aof.1.incr.aof"

#: Cuts anywhere between the first command and the last.
ODD_CUTS = 3

#: The call that queues the runs. Who made it makes it again where no reply came.
Call = Callable[[Ledger], object]


@dataclass(frozen=True)
class Case:
    runs: Sequence[str]
    """Ids of those that the call queues."""

    call: Call


def made(ledger: Ledger, **keys: Any) -> Any:
    """A job whose message the ledger has; no lease of it runs out by itself."""
    spec = job(ledger, **{"task": "shop.plain", "lease_ttl": "1h", **keys})
    with_messages(ledger, app_on(url_of(ledger)))
    return spec


def url_of(ledger: Ledger) -> str:
    return f"redis://127.0.0.1:{ledger.client.connection_pool.connection_kwargs['port']}/0"


def at_work_on(ledger: Ledger, **keys: Any) -> tuple[Any, str]:
    """The job and its run, whose message a worker has taken."""
    spec = made(ledger, **keys)
    at_work(ledger, spec, 0)
    take_all(ledger.client)
    return spec, run_id(spec, 0)


def admission(ledger: Ledger) -> Case:
    spec = made(ledger)
    return Case([run_id(spec, 0)], lambda ledger: ledger.admit(ticks(spec, 0)))


def trigger(ledger: Ledger) -> Case:
    spec, request = made(ledger), RunRequest(run_id="nightly@by-hand")
    return Case(["nightly@by-hand"], lambda ledger: ledger.admit_request(spec, request))


def promotion(ledger: Ledger) -> Case:
    spec, run = at_work_on(ledger, overlap="queue_one")
    ledger.admit(ticks(spec, 1))
    return Case([run_id(spec, 1)], lambda ledger: ledger.finish(run, "token", RunState.SUCCEEDED))


def due_retry(ledger: Ledger) -> Case:
    _, run = at_work_on(ledger, max_retries=3)
    ledger.retry(run, "token", timedelta())
    return Case([run], lambda ledger: ledger.rescue())


def rescue(ledger: Ledger) -> Case:
    _, run = at_work_on(ledger, on_crash="rerun")
    lease_runs_out(ledger, run)
    return Case([run], lambda ledger: ledger.rescue())


def undone_begin(ledger: Ledger) -> Case:
    _, run = at_work_on(ledger)
    return Case([run], lambda ledger: ledger.undo_begin(run, "token"))


def next_stage(ledger: Ledger) -> Case:
    steps = [
        {"task": "shop.plain", "name": name, "priority": priority}
        for name, priority in (("one", 2), ("two", 1), ("beside", 1))
    ]
    spec = made(ledger, task=None, steps=steps)
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    begin(ledger, f"{run}~one")
    take_all(ledger.client)
    return Case(
        [f"{run}~two", f"{run}~beside"],
        lambda ledger: ledger.finish(f"{run}~one", "token", RunState.SUCCEEDED),
    )


def items_of_a_batch(ledger: Ledger) -> Case:
    """They wait in the outbox: Celery makes their messages."""
    steps = [{"task": "shop.one_argument", "name": "each", "priority": 1, "foreach": "items"}]
    spec = made(ledger, task=None, steps=steps, params={"items": [1, 2]})
    ledger.admit(ticks(spec, 0))
    batch = f"{run_id(spec, 0)}~each"
    return Case([f"{batch}#0", f"{batch}#1"], lambda ledger: ledger.steps.expand(batch, [1, 2]))


CASES = (
    admission,
    trigger,
    promotion,
    due_retry,
    rescue,
    undone_begin,
    next_stage,
    items_of_a_batch,
)


@pytest.fixture(params=["valkey", "redis-server"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    program = needed("redis-server") if request.param == "redis-server" else None
    server = Node(tmp_path / "server", program)
    started(server)
    yield server
    server.kill()


def started(node: Node) -> Ledger:
    """The ledger on a server that has nothing to wait for."""
    node.start(CONFIGURATION)
    with redis.Redis(port=node.port) as client:
        wait_until(lambda: answers(client), 20)
    ledger = Ledger.open(Settings(redis_url=f"redis://127.0.0.1:{node.port}/0"))
    ledger.acknowledge_server()
    return ledger


def contents(ledger: Ledger) -> dict[str, Any]:
    """All keys but what `acknowledge_server` writes, with their values and when they expire."""
    client: Any = ledger.client
    read = {
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
        "string": lambda key: client.execute_command("GET", key, **{NEVER_DECODE: True}),
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    keys = {*client.keys()} - {ledger.keys.server}
    return {key: (read[client.type(key)](key), client.pexpiretime(key)) for key in keys}


def queued(ledger: Ledger, runs: Sequence[str]) -> list[bool]:
    return [ledger.client.hget(ledger.keys.run(run), "state") == "queued" for run in runs]


def messages(ledger: Ledger, runs: Sequence[str]) -> list[int]:
    """How many messages of each run lie in the queue, or are to be made from the outbox."""
    texts = ledger.client.lrange("celery", 0, -1)
    outbox = ledger.client.zrange(ledger.keys.outbox, 0, -1)
    return [sum(f'"id": "{run}"' in text for text in texts) + outbox.count(run) for run in runs]


# A server that refuses.

REFUSALS: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "OOM": (
        lambda client: client.config_set("maxmemory", "1"),
        lambda client: client.config_set("maxmemory", "0"),
    ),
    "NOREPLICAS": (
        lambda client: client.config_set("min-replicas-to-write", "1"),
        lambda client: client.config_set("min-replicas-to-write", "0"),
    ),
    "READONLY": (
        lambda client: client.replicaof("127.0.0.1", "1"),
        lambda client: client.replicaof("no", "one"),
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_call_that_the_server_refuses_changes_nothing(node: Node, case: Any) -> None:
    ledger = Ledger.open(Settings(redis_url=f"redis://127.0.0.1:{node.port}/0"))
    of_case = case(ledger)
    with redis.Redis(port=node.port) as client:
        before = contents(ledger)
        for refuse, allow in REFUSALS.values():
            refuse(client)
            with pytest.raises(RedisError):
                of_case.call(ledger)
            assert contents(ledger) == before
            allow(client)
    for _ in range(2):
        of_case.call(ledger)
        assert (all(queued(ledger, of_case.runs)), {*messages(ledger, of_case.runs)}) == (True, {1})
    ledger.close()


# A server that is killed: its append-only file ends where it had come to.


def commands_of(data: bytes) -> list[tuple[int, bytes]]:
    """Where each command ends, and its name; of a whole number of commands as Redis writes them."""
    found, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        words = []
        count, at = int(data[at + 1 : end]), end + 2
        for _ in range(count):
            end = data.index(b"\r\n", at)
            length, at = int(data[at + 1 : end]), end + 2
            words.append(data[at : at + length])
            at += length + 2
        found.append((at, words[0].upper()))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_call_is_whole_or_not_there_wherever_the_server_was_killed(
    node: Node, tmp_path: Path, case: Any
) -> None:
    ledger = Ledger.open(Settings(redis_url=f"redis://127.0.0.1:{node.port}/0"))
    of_case = case(ledger)
    file = node.directory / APPENDED
    start = file.stat().st_size
    of_case.call(ledger)
    ledger.close()
    node.kill()
    data = file.read_bytes()
    commands = commands_of(data[start:])
    names = [name for _, name in commands]
    # The server writes what a function did as one transaction, and executes none in part.
    assert (names[0], names[-1]) == (b"MULTI", b"EXEC")
    assert len(names) > 4
    ends = [start, *(start + end for end, _ in commands)]
    odd = random.Random(case.__name__).sample(range(start + 1, ends[-1]), ODD_CUTS)
    before: dict[str, Any] = {}
    for number, cut in enumerate((start, ends[-2], ends[-1], *odd)):
        copy = Node(tmp_path / f"{number}", node.program, node.port)
        copytree(node.directory, copy.directory)
        (copy.directory / APPENDED).write_bytes(data[:cut])
        ledger = started(copy)
        try:
            is_whole = cut == ends[-1]
            before = before or contents(ledger)
            assert (contents(ledger) == before) is not is_whole
            each = len(of_case.runs)
            assert queued(ledger, of_case.runs) == [is_whole] * each
            assert messages(ledger, of_case.runs) == [int(is_whole)] * each
            of_case.call(ledger)
            assert queued(ledger, of_case.runs) == [True] * each
            assert messages(ledger, of_case.runs) == [1] * each
        finally:
            ledger.close()
            copy.kill()
