"""Work in a child process: what comes back, and when nothing does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

#: In a process without other threads, for which a fork is no question on any version of Python.
ALONE = """
import os, select, signal
from pathlib import Path
from supervisor.beat.in_child import in_child
{}
"""


def said(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(code)], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_it_gives_what_the_work_returns_from_another_process() -> None:
    assert "True" in said("print(in_child(os.getpid) != os.getpid())")


def test_it_raises_what_the_work_raises() -> None:
    assert "KeyError: 'absent'" in said("in_child(lambda: {}['absent'])")


def test_a_child_that_is_killed_is_an_error_and_not_waited_for() -> None:
    code = "in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))"
    assert "ChildProcessError: a child was ended, exit code -9" in said(code)


def test_what_the_parent_does_at_its_end_the_child_does_not() -> None:
    code = "import atexit; atexit.register(print, 'end of', os.getpid()); in_child(os.getpid)"
    assert said(code).count("end of") == 1


def test_its_parent_has_other_things_to_do_meanwhile() -> None:
    code = """
reader, writer = os.pipe()

def hear_twice():
    for _ in range(2):
        assert select.select([reader], [], [], 20)[0], "nothing was done meanwhile"
        os.read(reader, 1)
    return "heard twice"

print(in_child(hear_twice, lambda: os.write(writer, b".")))
"""
    assert said(code) == "heard twice\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means")
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    hangs = f"""
def tell_and_hang():
    Path({str(written)!r}).write_text(str(os.getpid()))
    signal.pause()

in_child(tell_and_hang)
"""
    with subprocess.Popen([sys.executable, "-c", ALONE.format(hangs)]) as parent:
        wait_until(lambda: written.exists() and written.read_text())
        child = os.pidfd_open(int(written.read_text()))
        parent.kill()
    has_ended = bool(select.select([child], [], [], 10)[0])
    if not has_ended:
        signal.pidfd_send_signal(child, signal.SIGKILL)
    os.close(child)
    assert has_ended
