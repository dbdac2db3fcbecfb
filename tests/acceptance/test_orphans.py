"""A worker that is killed as it forks a child takes this one with it, too."""

from __future__ import annotations

import os
import signal

from tests.acceptance.project import Project
from tests.processes import is_alive
from tests.waiting import wait_until

#: A child comes to ask the kernel to be killed with its worker when that was killed already.
SLOW_FORK = """
import select

def wait_for_the_end_of_the_worker():
    WITNESS.with_name(f"forked-{os.getpid()}").touch()
    select.select([os.pidfd_open(os.getppid())], [], [], 100)

os.register_at_fork(after_in_child=wait_for_the_end_of_the_worker)
"""


def test_a_child_that_was_forked_as_its_worker_was_killed_does_not_live_on(
    project: Project,
) -> None:
    project.extend(SLOW_FORK)
    worker = project.hire(processes=2)

    def forked() -> list[int]:
        return [
            int(path.name.removeprefix("forked-")) for path in project.directory.glob("forked-*")
        ]

    children = wait_until(lambda: len(forked()) == 2 and forked(), 30)
    assert all(map(is_alive, children))
    worker.kill()
    worker.wait()
    try:
        wait_until(lambda: not any(map(is_alive, children)), 30)
    finally:
        for child in filter(is_alive, children):
            os.kill(child, signal.SIGKILL)
