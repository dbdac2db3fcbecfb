"""A Redis that forbids something, or is none for us: what is met, and what to do, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import redis

from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.nodes import SERVER, Node, answers
from tests.acceptance.project import Project
from tests.damage import lose_functions
from tests.ports import free_port
from tests.programs import needed
from tests.waiting import scaled, wait_until

JOBS = "jobs: {tick: {task: team.work, every: 1s}}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    server = Node(tmp_path / "redis", needed("redis-server"))
    yield server
    server.kill()


def started(node: Node, *options: str) -> redis.Redis:
    node.start(SERVER, *options)
    client = redis.Redis(port=node.port)
    wait_until(lambda: answers(client), 20)
    return client


def test_a_right_that_beat_lacks_is_a_fault_and_script_is_none_of_them(
    tmp_path: Path, node: Node, stack: ExitStack
) -> None:
    admin = started(node)
    admin.acl_setuser(
        "beat",
        enabled=True,
        passwords=["+x"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=["-script", "-info"],
    )
    url = f"redis://127.0.0.1:{node.port}/0"
    ledger = Ledger.open(Settings(url))
    ledger.acknowledge_server()
    lose_functions(ledger)
    project = Project(tmp_path / "team", url.replace("//", "//beat:x@"))
    stack.callback(project.stop)
    project.schedule(JOBS)
    project.beat()
    failed = wait_until(lambda: project.events("beat", "turn failed"), 60)
    assert failed[-1]["error"].startswith("Redis forbids it to this user: ")
    assert "(docs/how-to/redis.md has what each user needs)" in failed[-1]["error"]

    project.url = url
    result = project.supervisor("doctor")
    assert result.returncode == 1
    assert "fail: Redis forbids it to this user: " in result.stdout
    assert "no beat is running" not in result.stdout

    admin.execute_command("ACL", "SETUSER", "beat", "+info")
    wait_until(lambda: project.events("beat", "leadership taken"), 30)
    wait_until(lambda: project.ledger.history("tick", 1), 60)
    wait_until(lambda: "the ticks of" not in project.supervisor("doctor").stdout, 30)


def test_a_redis_cluster_is_told_as_one_at_every_door(
    tmp_path: Path, node: Node, stack: ExitStack
) -> None:
    admin = started(
        node, "--cluster-enabled", "yes", "--appendonly", "no", "--cluster-port", str(free_port())
    )
    admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    project = Project(tmp_path / "team", f"redis://127.0.0.1:{node.port}/0")
    stack.callback(project.stop)
    said = "this is a node of a Redis Cluster, and a ledger is on one server"
    wait_until(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"), 20)
    project.schedule(JOBS)
    project.beat()
    port = free_port()
    project.serve("--port", str(port))
    assert said in project.supervisor("doctor").stderr
    wait_until(lambda: any(said in e["error"] for e in project.events("beat", "turn failed")), 60)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client:

        def readyz() -> httpx.Response | None:
            with suppress(httpx.TransportError):
                return client.get("/readyz")
            return None

        answer = wait_until(readyz, 30)
        assert (answer.status_code, said in answer.text) == (503, True)
