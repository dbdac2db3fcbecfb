"""Work in a child process: what comes back, and when nothing does."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

#: In a process without other threads, for which a fork is no question on any version of Python.
ALONE = """
import os, signal
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
    code = "import time; in_child(lambda: time.sleep(2.5), lambda: print('in', os.getpid()))"
    assert said(code).count("in ") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means")
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    hangs = (
        f"in_child(lambda: (open({str(written)!r}, 'w').write(str(os.getpid())), time.sleep(60)))"
    )
    with subprocess.Popen([sys.executable, "-c", "import time" + ALONE.format(hangs)]) as parent:
        wait_until(lambda: written.exists() and written.read_text())
        child = os.pidfd_open(int(written.read_text()))
        parent.kill()
    assert select.select([child], [], [], 10)[0]
    os.close(child)
