"""Work in a child process: what is exchanged with it, what it may use, and when it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.guard import lock_file
from tests.acceptance import warm
from tests.waiting import scaled, wait_until

#: In a process without other threads, for which a fork is no question on any version of Python.
ALONE = """
import os, signal
from pathlib import Path
from supervisor.process import Child, Limits
LIMITS = Limits(cpu_seconds=10, memory=1 << 28)
{}
"""


def test_what_is_made_under_any_umask_is_this_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lock_file.DIRECTORY_VARIABLE, str(tmp_path / "locks" / "of" / "app"))
    before = os.umask(0)
    try:
        lock_file.directory()
        with EmbeddedServer(tmp_path / "state" / "valkey"):
            made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    finally:
        os.umask(before)
    ours = {"locks", "of", "app", "state", "valkey"}  # the server makes more within its own
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in made if path.name in ours}
    assert modes == dict.fromkeys(ours, "0o700")


def said(code: str) -> str:
    done = warm.run(["-c", ALONE.format(code)], Path.cwd(), os.environ)
    return done.stdout + done.stderr


def test_a_child_returns_what_its_work_returns() -> None:
    code = """
child = Child(os.getpid, LIMITS)
pid = child.result()
print(pid != os.getpid(), child._process.pid == pid, child._process.is_alive())
"""
    assert said(code) == "True True False\n"


def test_a_child_begins_although_a_connection_of_the_app_waits(redis_url: str) -> None:
    """What kombu has multiprocessing do in a child waits for them as well: the first child takes
    the reply from the socket, and the second would wait for ever."""
    code = f"""
from celery import Celery

app = Celery(broker={redis_url!r})
with app.pool.acquire() as connection, app.amqp.TaskConsumer(connection.default_channel):
    try:
        connection.drain_events(timeout=0.1)
    except TimeoutError:
        pass

for _ in range(2):
    child = Child(lambda: "begun", LIMITS)
    print(child.has_ended({scaled(5)}) and child.result())
"""
    assert said(code) == "begun\nbegun\n"


def test_a_daemonic_process_of_multiprocessing_may_have_one() -> None:
    code = """
from multiprocessing import get_context

def beat():
    print(Child(lambda: "begun", LIMITS).result(), flush=True)

process = get_context("fork").Process(target=beat, daemon=True)
process.start()
process.join()
"""
    assert said(code) == "begun\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers of files come from the kernel")
def test_objects_whose_files_were_closed_close_none_of_later_ones() -> None:
    """As in a beat within a worker: Celery closes the file of sys.stdin, and a fork closes it."""
    code = """
import socket, sys
from supervisor.process import reserve_closed_files

sys.stdin = open(os.devnull)
stale = [socket.socketpair() for _ in range(3)]
os.closerange(3, 100)
reserve_closed_files()
print(Child(lambda: "heard", LIMITS).result())
reader, writer = os.pipe()
stale.clear()
os.write(writer, b"written")
print(os.read(reader, 7).decode())
"""
    assert said(code) == "heard\nwritten\n"


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("{}['absent']", "KeyError: 'absent'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "a child was ended, exit code -9"),
        ("open('/nowhere/at/all')", "FileNotFoundError"),
        ("max(iter(int, 1))", "it took more processor time than it is given"),
        ("len(bytearray(1 << 30))", "MemoryError"),
    ],
)
def test_what_ends_the_work_is_raised_in_its_parent(work: str, expected: str) -> None:
    code = f"Child(lambda: {work}, Limits(1, 1 << 28)).result()"
    assert expected in said(code).splitlines()[-1]


def test_its_parent_does_not_wait_for_it_and_may_end_it() -> None:
    code = """
def hang():
    while True:
        signal.pause()

child = Child(hang, LIMITS)
print(child.has_ended())
child.end()
print("ended")
"""
    assert said(code) == "False\nended\n"


def test_what_the_parent_does_at_its_end_the_child_does_not() -> None:
    code = """
import atexit
atexit.register(print, "end of", os.getpid())

Child(os.getpid, LIMITS).result()
"""
    assert said(code).count("end of") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means")
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    hangs = f"""
def write_and_hang():
    Path({str(written)!r}).write_text(str(os.getpid()))
    signal.pause()

Child(write_and_hang, LIMITS).result()
"""
    with subprocess.Popen([sys.executable, "-c", ALONE.format(hangs)]) as parent:
        wait_until(lambda: written.exists() and written.read_text())
        child = os.pidfd_open(int(written.read_text()))
        parent.kill()
    has_ended = bool(select.select([child], [], [], scaled(10))[0])
    if not has_ended:
        signal.pidfd_send_signal(child, signal.SIGKILL)
    os.close(child)
    assert has_ended


def test_a_child_gives_way_to_its_parent() -> None:
    code = """
def niceness():
    return os.getpriority(os.PRIO_PROCESS, 0)

print(Child(niceness, LIMITS).result() > niceness())
"""
    assert said(code) == "True\n"
