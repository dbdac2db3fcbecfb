"""The whole product under the users of the ACL example: all that is needed, and nothing else."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from supervisor import jobs
from supervisor.app import supervise
from supervisor.cli import main
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.web.access import Access
from tests.acceptance.nodes import SERVER, Node, answers
from tests.acceptance.project import Project
from tests.ports import free_port
from tests.tools.web.visits import visiting
from tests.waiting import scaled, wait_until

ROOT = Path(__file__).parents[2]
ACL = (ROOT / "docs" / "how-to" / "users.acl.example").read_text()
WRITERS = ("beat", "worker", "serve", "operator")
USERS = (*WRITERS, "reader")
PASSWORDS = {f"{name.upper()}_PASSWORD": secrets.token_hex(16) for name in (*USERS, "test")}


SCHEDULE = """\
jobs:
  tick: {task: team.work, every: 1s}
  in-a-row: {task: team.work, every: 1s, serial: true}
  failing: {task: team.fail, every: 1s, max_retries: 1, retry_backoff: 1s}
  held: {task: team.hang, every: 1d, overlap: queue_one}
  steps:
    every: 2s
    steps:
      - {name: first, task: team.work, priority: 2}
      - {name: second, task: team.work, priority: 1}
"""


class Guarded:
    """A server that knows these users and no other, but for the test's own."""

    def __init__(self, directory: Path, acl: str = ACL) -> None:
        directory.mkdir()
        users = Template(acl).substitute(PASSWORDS)
        own = f"user test on >{PASSWORDS['TEST_PASSWORD']} ~* &* +@all\n"
        (directory / "users.acl").write_text(users + own)
        self.node = Node(directory)
        self.node.start(SERVER + "aclfile users.acl\n")
        self.admin = self.client("test")
        wait_until(lambda: answers(self.admin), 20)

    def url(self, user: str) -> str:
        return (
            f"redis://{user}:{PASSWORDS[f'{user.upper()}_PASSWORD']}@127.0.0.1:{self.node.port}/0"
        )

    def client(self, user: str) -> Any:
        return redis.Redis.from_url(self.url(user), decode_responses=True)

    def refusals(self) -> set[tuple[str, str]]:
        """Who was refused what, since the server started."""
        return {(entry["username"], entry["object"]) for entry in self.admin.acl_log()}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("acl") / "redis")
    Ledger.open(Settings(server.url("operator"))).acknowledge_server()
    yield server
    server.node.kill()


@pytest.fixture
def project(tmp_path: Path, guarded: Guarded) -> Iterator[Project]:
    deployed = Project(tmp_path / "team", guarded.url("beat"))
    yield deployed
    deployed.stop()


def verb(guarded: Guarded, words: str) -> str:
    done = CliRunner().invoke(
        main, ["--redis-url", guarded.url("operator"), *shlex.split(words)], catch_exceptions=False
    )
    assert done.exit_code == 0, (words, done.output)
    return done.output


#: The patterns of the example, for a ledger with a prefix and a queue of its own.
OF_A_PREFIX = {
    "supervisor:": "shop:",
    " ~redbeat:*": "",
    "serial.": "serial.shop.",
    "~celery ": "~q ",
    "~celery??": "~q??",
}


def test_users_of_a_prefix_need_no_keys_of_another(tmp_path: Path, stack: ExitStack) -> None:
    acl = ACL
    for pattern, own in OF_A_PREFIX.items():
        acl = acl.replace(pattern, own)
    server = Guarded(tmp_path / "redis", acl)
    stack.callback(server.node.kill)
    project = Project(tmp_path / "team", server.url("beat"), environ={"SUPERVISOR_PREFIX": "shop"})
    stack.callback(project.stop)
    project.settings("task_default_queue = 'q'\n")
    Ledger.open(Settings(server.url("operator"), "shop")).acknowledge_server()
    project.schedule(SCHEDULE)
    project.beat()
    project.url = server.url("worker")
    project.hire(queues="q,serial.shop.in-a-row")
    wait_until(lambda: all(map(project.starts, ["tick", "in-a-row", "steps"])), 60)
    assert server.refusals() == set()


def test_nothing_of_the_product_is_refused(project: Project, guarded: Guarded) -> None:
    project.schedule(SCHEDULE)
    beats = [project.beat(), project.beat()]
    project.url = guarded.url("worker")
    worker = project.hire()
    project.hire(queues="serial.in-a-row", processes=1)
    port, readers_port = free_port(), free_port()
    project.url = guarded.url("serve")
    project.serve("--port", str(port))
    project.url, project.environ = guarded.url("reader"), {"SUPERVISOR_TOKEN": ""}
    project.serve("--port", str(readers_port))
    project.environ = {}
    project.url = guarded.url("operator")
    wait_until(lambda: all(map(project.starts, ["tick", "in-a-row", "failing", "steps"])), 60)

    held = verb(guarded, "trigger held").split()[0]
    waiting = verb(guarded, "trigger held").split()[0]
    wait_until(lambda: project.starts("held"), 20)
    verb(guarded, f"cancel {held}")
    project.run_when(held, "cancelled")
    wait_until(lambda: len(project.starts("held")) > 1, 20)
    verb(guarded, f"cancel {waiting}")
    for words in ("pause tick", "resume tick", "jobs", "runs", f"show {held}", "why tick"):
        verb(guarded, words)
    for words in ("next tick", "audit", "queues", "doctor"):
        verb(guarded, words)
    for verbs in (["doctor"], ["apply"]):
        done = project.supervisor(*verbs)
        assert done.returncode == 0, done.stdout + done.stderr
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client:
        assert 'supervisor_queue_length{queue="serial.in-a-row"}' in client.get("/metrics").text
        assert client.get("/").status_code == 200
    for process in (beats[0], worker):
        process.terminate()
    wait_until(lambda: beats[0].poll() is not None and worker.poll() is not None, 40)

    # The reader's server does not note up to where it has logged the record of actions. Of runs
    # that an operator lets begin, beat sends the messages.
    assert guarded.refusals() <= {("reader", "hset"), ("operator", "celery")}
    assert re.findall(r"NOPERM|no permissions", project.logs()) == []


def test_who_may_not_read_redbeats_schedule_sees_the_page_without_it(guarded: Guarded) -> None:
    url = guarded.url("serve")
    app = supervise(Celery("team", broker=url, set_as_current=False))
    with app, visiting(Ledger.open(Settings(url)), Access(), app) as client:
        assert client.get("/queues").status_code == 200
        refused = client.get("/api/v1/unguarded")
        assert (refused.status_code, "permission" in refused.text) == (409, True), refused.text


FORBIDDEN = (
    *("FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "CONFIG SET appendonly no", "CONFIG GET *"),
    *("ACL LIST", "CLIENT LIST", "CLIENT KILL 127.0.0.1:1", "MONITOR", "SAVE"),
    *("SHUTDOWN NOSAVE", "REPLICAOF NO ONE", "FUNCTION FLUSH", "GET other", "SET other 1"),
    *("SET celery-task-meta-1 x", "PUBLISH other x", "SELECT 1", "SWAPDB 0 1"),
    *("MOVE supervisor:jobs 1", "COPY supervisor:jobs supervisor:jobs DB 1"),
)


@pytest.mark.parametrize("user", USERS)
def test_no_user_may_do_more_than_is_needed(guarded: Guarded, user: str) -> None:
    client = guarded.client(user)
    for command in FORBIDDEN:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command.split())


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("beat", "BRPOP celery 1"),
        ("beat", "HGETALL unacked"),
        ("worker", "GET redbeat::lock"),
        ("worker", "HSET redbeat:tick spec x"),
        ("serve", "LPUSH celery x"),
        ("serve", "DEL serial.in-a-row"),
        ("serve", "ZADD redbeat::schedule 1 x"),
        ("reader", "HSET supervisor:jobs tick x"),
        ("reader", "DEL supervisor:job:tick"),
        ("operator", "LPUSH celery x"),
        ("operator", "BRPOP celery 1"),
    ],
)
def test_a_user_may_not_do_the_work_of_another(guarded: Guarded, user: str, command: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        guarded.client(user).execute_command(*command.split())


def put_as(guarded: Guarded, user: str) -> str:
    app = supervise(Celery("proj", broker=guarded.url(user), set_as_current=False))
    return jobs.put("put", task="proj.work", every="1h", app=app).source


def test_a_put_without_the_right_to_redbeats_keys_changes_nothing(guarded: Guarded) -> None:
    ledger = Ledger.open(Settings(guarded.url("operator")))
    with pytest.raises(redis.exceptions.NoPermissionError):
        put_as(guarded, "serve")
    assert ledger.loaded(["put"]).specs == {}
    assert "put" not in ledger.origins()
    assert put_as(guarded, "operator") == "runtime"
    ledger.client.close()


def test_the_reader_has_no_command_that_writes(guarded: Guarded) -> None:
    [line] = [line for line in ACL.splitlines() if line.startswith("user reader ")]
    granted = {word[1:] for word in line.split() if word.startswith("+")}
    assert granted & set(guarded.admin.acl_cat("write")) == set()


@pytest.mark.parametrize("user", WRITERS)
def test_every_command_of_the_ledger_is_granted(guarded: Guarded, user: str) -> None:
    """Also those that a short run of the product does not come to."""
    folders = [ROOT / "supervisor" / name for name in ("store", "ledger", "features")]
    release = ROOT / "supervisor/features/adoption/release.py"  # an administrator runs it, once
    sources = [path for folder in folders for path in folder.rglob("*") if path != release]
    texts = [path.read_text() for path in sources if path.suffix in (".lua", ".py")]
    called = re.findall(
        r"\b(?:redis\.p?call\('|(?:pipe|client)\.)(\w+?)(?:_iter)?[('\"]", "".join(texts)
    )
    commands = {name.lower() for name in called} & set(guarded.admin.command_list())
    by_category = {"ping", "watch", "multi"}
    [line] = [line for line in ACL.splitlines() if line.startswith(f"user {user} ")]
    assert {"hset", "hscan", "sscan", "xadd"} < commands
    assert commands - by_category - {word[1:] for word in line.split()} == set()
