"""What a liveness probe learns of a worker that is there and does no work."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from socket import SHUT_RDWR
from subprocess import CompletedProcess

import pytest
from celery import Celery

from supervisor.ledger.presence import Present, WorkerFacts
from tests.acceptance.project import Project
from tests.proxy import proxy_to
from tests.waiting import wait_until

#: A task's place in the pool is not needed: what hangs is the main process.
HANGS = """
from celery.worker.control import control_command
from supervisor.worker import presence

presence.PRESENCE_INTERVAL /= 5  # a second
presence.ROUNDS_WITHOUT_TURN = 2

@control_command()
def hang(state):
    state.consumer.hub.call_soon(wedged)

def wedged():
    time.sleep(600)

@control_command()
def go_deaf(state):
    # As kombu was seen to after a lost connection: nobody asks the broker for messages.
    channel = state.consumer.task_consumer.channel
    channel.connection.cycle._register_BRPOP = lambda channel: None
"""


HANGS_IN_SIGNAL = """
from celery.signals import task_received

@task_received.connect
def wait_for_ever(**_):
    time.sleep(600)
"""


def team(directory: Path, url: str, broker: str) -> Project:
    project = Project(directory, url, broker=broker)
    with (directory / "team.py").open("a") as module:
        module.write(HANGS)
    return project


def health(project: Project, name: str = "worker0") -> CompletedProcess[str]:
    return project.supervisor("health", "worker", "--name", f"{name}@%h")


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


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", ["prefork", "gevent", "solo"])
def test_a_worker_that_no_longer_asks_for_messages_fails_its_probe(
    tmp_path: Path, redis_url: str, pool: str
) -> None:
    project = team(tmp_path / "team", redis_url, redis_url)
    try:
        project.schedule("jobs: {held: {task: team.hold, every: 24h, paused: true}}")
        project.beat()
        project.worker("-P", pool, processes=1)
        project.wait_for_jobs()
        # One that is busy has none to ask for, and the solo pool's loop stands still meanwhile.
        run = project.trigger("held")
        wait_until(lambda: project.starts("held"), 30)
        [present] = wait_until(lambda: workers(project), 30)
        seen = present.last_seen_at
        wait_until(lambda: workers(project)[0].last_seen_at - seen > timedelta(seconds=5), 60)
        assert health(project, "worker1").stdout == "fine\n"
        project.let_end(run.id)
        project.run_when(run.id, "succeeded")
        with Celery(broker=project.url) as app:
            wait_until(lambda: app.control.broadcast("go_deaf", reply=True, timeout=2), 60)
        wait_until(lambda: "has had no answer" in health(project, "worker1").stdout, 60)
        assert "does no work: its main loop turns" in project.supervisor("doctor").stdout
    finally:
        project.stop()


def workers(project: Project) -> list[Present]:
    present = project.ledger.presences.roll().present
    return [each for each in present if isinstance(each.facts, WorkerFacts)]


@pytest.mark.timeout(180)
def test_a_worker_of_greenlets_whose_main_loop_hangs_fails_its_probe(
    tmp_path: Path, redis_url: str
) -> None:
    project = team(tmp_path / "team", redis_url, redis_url)
    try:
        project.extend(HANGS_IN_SIGNAL)
        project.worker("-P", "gevent")
        wait_until(lambda: health(project).stdout == "fine\n", 30)
        with Celery(broker=project.url) as app:
            app.send_task("team.unsupervised", ["proof"])
        wait_until(lambda: "its main loop has not turned for" in health(project).stdout, 60)
    finally:
        project.stop()
