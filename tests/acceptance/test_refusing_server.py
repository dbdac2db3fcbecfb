"""A server that answers, and refuses: beat and workers stay, and go on when it does no more.

What it refused is neither lost nor done twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import redis
from redis.exceptions import RedisError

from supervisor.job.run import RunState
from tests.acceptance.nodes import SERVER, Node, answers
from tests.acceptance.project import Project, outcomes
from tests.programs import needed
from tests.waiting import wait_until

REFUSES_SOON = SERVER + "appendonly no\nbusy-reply-threshold 100\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    server = Node(tmp_path / "redis", needed("redis-server"))
    server.start(REFUSES_SOON)
    yield server
    server.kill()


def test_a_server_that_refuses_for_a_while_ends_no_beat_and_no_worker(
    tmp_path: Path, node: Node, stack: ExitStack
) -> None:
    project = Project(tmp_path / "team", f"redis://127.0.0.1:{node.port}/0")
    stack.callback(project.stop)
    client = redis.Redis(port=node.port)
    wait_until(lambda: answers(client), 20)
    project.ledger.acknowledge_server()
    dump = node.directory / "dump.rdb"

    def config(name: str, value: str) -> Callable[[], object]:
        return lambda: client.config_set(name, value)

    def fail_to_save() -> None:
        dump.mkdir()
        client.config_set("save", "3600 1000000")
        client.bgsave()

    def save_again() -> None:
        dump.rmdir()
        client.config_set("save", "")

    def be_busy() -> None:
        def loop() -> None:
            with suppress(RedisError):
                client.eval("while true do end", 0)

        threading.Thread(target=loop, daemon=True).start()

    project.schedule("jobs: {tick: {task: team.work, every: 1s, lease_ttl: 3s, history: 1000}}")
    beat, worker = project.beat(), project.worker()
    for code, begin, end in (
        *(
            (
                "NOREPLICAS",
                config("min-replicas-to-write", "1"),
                config("min-replicas-to-write", "0"),
            ),
        ),
        (
            "READONLY",
            lambda: client.replicaof("127.0.0.1", "1"),
            lambda: client.replicaof("no", "one"),
        ),
        ("OOM", config("maxmemory", "1"), config("maxmemory", "0")),
        ("MISCONF", fail_to_save, save_again),
        ("BUSY", be_busy, client.script_kill),
    ):
        before = len(project.starts("tick"))
        wait_until(lambda before=before: len(project.starts("tick")) > before, 60)
        refusals = len(project.events("beat", "turn failed"))
        begin()
        wait_until(lambda n=refusals: len(project.events("beat", "turn failed")) > n, 60)
        assert words_of(code) in str(project.events("beat", "turn failed")[-1])
        end()
        before = len(project.starts("tick"))
        wait_until(lambda before=before: len(project.starts("tick")) > before, 60)
        assert (code, beat.poll(), worker.poll()) == (code, None, None)
    assert_all_accounted_for(project, "tick")


def assert_all_accounted_for(project: Project, job: str) -> None:
    """Each second from the first tick on has one outcome; what succeeded was done once."""
    project.ledger.pause(job)
    wait_until(lambda: not outcomes(project.ledger, job).get("open"), 30)
    rows = project.ledger.history(job, 1000)
    seconds = Counter(
        second
        for row in rows
        for second in range(
            round((row.first_nominal_at or row.nominal_at).timestamp()),
            round(row.nominal_at.timestamp()) + 1,
        )
    )
    assert seconds == Counter(range(min(seconds), max(seconds) + 1))
    done = [row.id for row in rows if row.state is RunState.SUCCEEDED]
    assert Counter(sign.run for sign in project.starts(job)) == Counter(done)
    assert len(done) > 5


def words_of(code: str) -> str:
    return {"READONLY": "read only replica", "OOM": "maxmemory"}.get(code, code)
