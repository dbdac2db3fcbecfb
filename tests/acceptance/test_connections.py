"""How a deployment is connected to its Redis: sockets, and what is never shown of an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.nodes import SERVER, Node
from tests.acceptance.project import Project, needs_children
from tests.conftest import database
from tests.ports import free_port
from tests.processes import children_of
from tests.waiting import scaled, wait_until

SECRET = "open/sesame"

ON_A_SOCKET = SERVER + "unixsocket {socket}\nrequirepass {secret}\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    server = Node(tmp_path / "redis")
    server.start(ON_A_SOCKET, socket=tmp_path / "s", secret=SECRET)
    wait_until((tmp_path / "s").exists, 20)
    yield server
    server.kill()


def test_the_product_works_over_a_socket(tmp_path: Path, node: Node, stack: ExitStack) -> None:
    url = f"redis+socket://:open%2Fsesame@{tmp_path / 's'}?virtual_host=1"
    Ledger.open(Settings(url)).acknowledge_server()
    project = Project(tmp_path / "team", url)
    stack.callback(project.stop)
    project.deploy("jobs: {tick: {task: team.work, every: 1s}}")
    port = free_port()
    project.serve("--port", str(port))
    wait_until(lambda: len(project.starts("tick")) > 1, 60)
    done = project.supervisor("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client:
        shown = [client.get(path).text for path in ("/metrics", "/readyz", "/")]
    for words in (["report"], ["inspect", "conf"], ["supervisor", "why", "tick"]):
        done = project.celery(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        shown += [done.stdout, done.stderr]
    texts = "".join([*shown, project.logs()])
    assert "redbeat_redis_url" in texts
    assert "sesame" not in texts


def test_an_app_with_a_database_for_redbeat_has_its_ledger_there(
    tmp_path: Path, redis_url: str, stack: ExitStack
) -> None:
    project = Project(tmp_path / "team", redis_url, broker=database(redis_url, 15), is_apart=False)
    stack.callback(project.stop)
    project.settings(f"REDBEAT_REDIS_URL = {redis_url!r}\ntask_default_queue = 'apart'\n")
    project.schedule("jobs: {tick: {task: team.work, every: 1s}}")
    project.beat()
    project.hire(queues="apart")
    wait_until(lambda: len(project.starts("tick")) > 1, 60)
    done = project.supervisor("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.ledger.client.zscore("redbeat::schedule", "redbeat:tick")


def sockets_of(pid: int) -> set[str]:
    targets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.add(str(fd.readlink()))
    return {target for target in targets if target.startswith("socket:")}


@needs_children("they connect by themselves")
def test_children_are_connected_to_the_ledger_before_their_first_run(project: Project) -> None:
    worker = project.worker()
    children = children_of(worker.pid)
    assert len(children) == 2
    wait_until(lambda: all(sockets_of(child) - sockets_of(worker.pid) for child in children))
