"""What the ledger and a probe learn of a worker that is there, and of one that does no work."""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from socket import SHUT_RDWR
from subprocess import CompletedProcess

import pytest
from celery import Celery

from supervisor.ledger.presence import Present, Processes, WorkerProcess
from tests.acceptance.project import Project
from tests.proxy import proxy_to
from tests.waiting import scaled, wait_until

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


def wait_until_fine(project: Project) -> None:
    """The command is asked once: again and again it would keep the machine busy."""

    def consumes() -> bool:
        processes = project.ledger.presences.processes()
        return any(each.queues for each in processes.workers) and not any(
            p.fault for p in processes.present
        )

    wait_until(consumes, 30)
    assert health(project).stdout == "fine\n"


def tell(app: Celery, command: str) -> None:
    """Returns once the worker has said that it does so; one that hangs already says nothing."""
    ask = partial(app.control.broadcast, command, reply=True, limit=1)
    wait_until(lambda: ask(timeout=scaled(10)), 60)


def wait_for_fault(project: Project, words: str) -> None:
    wait_until(lambda: [w for w in workers(project) if words in (w.fault or "")], 60)


def test_a_worker_whose_main_loop_hangs_fails_its_probe(
    tmp_path: Path, redis_url: str, stack: ExitStack
) -> None:
    with proxy_to(redis_url) as broker:
        project = team(tmp_path / "team", redis_url, broker.url)
        stack.callback(project.stop)
        project.worker()
        wait_until_fine(project)
        present = project.ledger.presences

        broker.freeze()
        for each in list(broker.open_sockets):
            with suppress(OSError):  # one that has ended meanwhile
                each.shutdown(SHUT_RDWR)
        wait_until(lambda: present.processes().present[0].is_waiting, 40)
        assert (health(project).returncode, health(project).stdout) == (0, "fine\n")
        assert "waits for its broker" in project.supervisor("doctor").stdout
        broker.thaw()
        wait_until(lambda: present.processes().workers[0].queues, 60)

        with Celery(broker=project.url) as app:
            tell(app, "hang")
        # With so few rounds allowed, a loop that has just reconnected may seem to hang, too.
        wait_for_fault(project, "is in team.wedged")
        done = health(project)
        assert done.returncode == 1
        assert "its main loop has not turned for" in done.stdout
        assert "does no work: its main loop" in project.supervisor("doctor").stdout


@pytest.mark.parametrize("pool", ["prefork", "gevent", "solo"])
def test_a_worker_that_no_longer_asks_for_messages_fails_its_probe(
    tmp_path: Path, redis_url: str, pool: str, stack: ExitStack
) -> None:
    project = team(tmp_path / "team", redis_url, redis_url)
    stack.callback(project.stop)
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
        tell(app, "go_deaf")
    wait_for_fault(project, "has had no answer")
    assert "has had no answer" in health(project, "worker1").stdout
    assert "does no work: its main loop turns" in project.supervisor("doctor").stdout


def workers(project: Project) -> list[Present]:
    present = project.ledger.presences.processes().present
    return [each for each in present if isinstance(each.process, WorkerProcess)]


def test_a_worker_of_greenlets_whose_main_loop_hangs_fails_its_probe(
    tmp_path: Path, redis_url: str, stack: ExitStack
) -> None:
    project = team(tmp_path / "team", redis_url, redis_url)
    stack.callback(project.stop)
    project.extend(HANGS_IN_SIGNAL)
    project.worker("-P", "gevent")
    wait_until_fine(project)
    with Celery(broker=project.url) as app:
        app.send_task("team.unsupervised", ["proof"])
    wait_for_fault(project, "has not turned for")
    assert "its main loop has not turned for" in health(project).stdout


# Who is there, by their own word: workers with what they consume


def processes(project: Project) -> Processes:
    return project.ledger.presences.processes()


def worker(project: Project) -> WorkerProcess:
    [found] = wait_until(lambda: processes(project).workers, 20)
    return found


def test_a_worker_is_listed_with_its_queues_until_it_stops(project: Project) -> None:
    process = project.worker(queues="celery,serial.slow", processes=3)
    said = worker(project)
    assert said.queues == ("celery", "serial.slow")
    assert said.pool_size == 3
    # The names come after it, once for all that know the same.
    wait_until(lambda: "team.work" in project.ledger.presences.tasks([said]))
    [present] = processes(project).present
    assert present.pid == process.pid
    assert present.broker.is_ledger
    with Celery(broker=project.url) as app:
        app.control.cancel_consumer("celery")
        wait_until(lambda: worker(project).queues == ("serial.slow",), 20)
        app.control.add_consumer("reports")
        wait_until(lambda: worker(project).queues == ("reports", "serial.slow"), 20)
    wait_until(lambda: processes(project).present[0].clock_offset is not None, 20)
    offset = processes(project).present[0].clock_offset
    assert offset is not None
    assert abs(offset.total_seconds()) < scaled(1)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: process.poll() is not None, 20)
    assert processes(project) == Processes((), {})


def test_a_killed_worker_is_missed(project: Project) -> None:
    process = project.worker()
    said = worker(project)
    process.kill()
    wait_until(lambda: processes(project).workers == [], 20)
    assert list(processes(project).last_seen) == [said.name]
