"""What a liveness probe learns of a worker that is there and does no work."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from socket import SHUT_RDWR
from subprocess import CompletedProcess

import pytest
from celery import Celery

from tests.acceptance.project import Project
from tests.proxy import proxy_to
from tests.waiting import wait_until

#: A task's place in the pool is not needed: what hangs is the main process.
HANGS = """
from celery.worker.control import control_command
from supervisor.worker import presence

presence.ROUNDS_WITHOUT_TURN = 1

@control_command()
def hang(state):
    state.consumer.hub.call_soon(wedged)

def wedged():
    time.sleep(600)
"""


def team(directory: Path, url: str, broker: str) -> Project:
    project = Project(directory, url, broker=broker)
    with (directory / "team.py").open("a") as module:
        module.write(HANGS)
    return project


def health(project: Project) -> CompletedProcess[str]:
    return project.supervisor("health", "worker", "--name", "worker0@%h")


@pytest.mark.timeout(180)
def test_a_worker_whose_main_loop_hangs_fails_its_probe(tmp_path: Path, redis_url: str) -> None:
    with proxy_to(redis_url) as broker:
        project = team(tmp_path / "team", redis_url, broker.url)
        try:
            project.worker()
            wait_until(lambda: health(project).stdout == "fine\n", 30)
            present = project.ledger.presences

            broker.freeze()
            for each in list(broker.open_sockets):
                with suppress(OSError):  # one that has ended meanwhile
                    each.shutdown(SHUT_RDWR)
            wait_until(lambda: present.roll().present[0].is_waiting, 40)
            assert (health(project).returncode, health(project).stdout) == (0, "fine\n")
            assert "waits for its broker" in project.supervisor("doctor").stdout
            broker.thaw()
            wait_until(lambda: present.roll().workers[0].queues, 60)

            with Celery(broker=project.url) as app:
                wait_until(lambda: app.control.broadcast("hang", reply=True, timeout=2), 60)
            # With so few rounds allowed, a loop that has just reconnected may seem to hang, too.
            wait_until(lambda: "is in team.wedged" in health(project).stdout, 60)
            done = health(project)
            assert done.returncode == 1
            assert "its main loop has not turned for" in done.stdout
            assert "does no work: its main loop" in project.supervisor("doctor").stdout
        finally:
            project.stop()
