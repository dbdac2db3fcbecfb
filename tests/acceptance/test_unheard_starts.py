"""Runs that a child begins while its worker's main process does not hear of it."""

from __future__ import annotations

import os
from array import array
from fcntl import ioctl
from pathlib import Path
from signal import SIGQUIT, SIGTERM, Signals
from termios import FIONREAD
from typing import Any

import pytest
from celery import Celery

from supervisor.job.run import Run
from tests.acceptance.project import Process, Project, needs_children, overlapping
from tests.acceptance.test_redelivery import cut_connections
from tests.acceptance.workers import Workers
from tests.processes import freeze, thaw
from tests.waiting import scaled, status_of, wait_until
from tools.matrix import since

pytestmark = needs_children("a process that runs its tasks itself hears of each")

JOBS = """
defaults: {lease_ttl: 3s, overlap: queue_one, paused: true}
jobs:
  quick: {task: team.work, every: 24h}
  works: {task: team.work, every: 24h}
  held: {task: team.hold, every: 24h, lease_ttl: 30s}
  limited: {task: team.hang, every: 24h, time_limit: 2s}
"""

SETTINGS = """
app.conf.worker_soft_shutdown_timeout = float(os.environ.get("SOFT", "0"))

from celery.signals import worker_process_shutdown

@worker_process_shutdown.connect(weak=False)
def leave(**_):
    if "LEAVES_LATE" in os.environ:
        wait_for("may-leave")
"""


@pytest.fixture
def workers(project: Project) -> Workers:
    """With a beat, and no worker yet."""
    project.extend(SETTINGS)
    project.schedule(JOBS)
    project.beat()
    project.wait_for_jobs()
    return Workers(project)


def unread_by(child: int) -> int:
    """How many bytes wait in the pipes that this process reads from."""
    pipes = {}
    for path in Path(f"/proc/{child}/fd").iterdir():
        if (target := str(path.readlink())).startswith("pipe:"):
            pipes[target] = path
    unread = 0
    for path in pipes.values():
        number = array("i", [0])
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            ioctl(descriptor, FIONREAD, number)
        finally:
            os.close(descriptor)
        unread += number[0]
    return unread


def idle_child(workers: Workers) -> int:
    """The child of the only worker that ran something, once the worker knows that it is free."""
    run = workers.trigger("quick")
    workers.project.run_when(run.id, "succeeded")
    with Celery(broker=workers.project.url) as app:
        # It returns with the first answer: the time is no more than a bound.
        asks: Any = app.control.inspect(timeout=scaled(10), limit=1)
        wait_until(lambda: (known := asks.query_task(run.id)) and not any(known.values()))
    return workers.start_of(run).pid


def sent_to(workers: Workers, child: int, job: str, *args: float) -> Run:
    """A run whose message is written to this child, which does not read it."""
    run = workers.trigger(job, *args)
    wait_until(lambda: unread_by(child))
    return run


def hear_no_more(worker: Process, child: int, number: Signals) -> None:
    """Returns when the worker's loop has ended: it has told the child that no more comes."""
    unread = unread_by(child)
    worker.send_signal(number)
    wait_until(lambda: unread_by(child) > unread)


def assert_next_run_waits_for(workers: Workers, run: Run) -> None:
    """The run has just begun, and lasts longer than its lease without a renewal."""
    following = workers.trigger("works", 0)
    workers.project.worker(processes=1)
    workers.project.run_when(following.id, "succeeded", 30)
    assert workers.outcomes(run) == ["succeeded"]
    assert overlapping(workers.project.witness("works")) == []
    assert len(workers.starts(run)) == len(workers.starts(following)) == 1


takes_nothing_back = since("celery", "5.5", "what a child has not read yet is taken back")


@pytest.mark.parametrize("number", [SIGTERM, pytest.param(SIGQUIT, marks=takes_nothing_back)])
def test_a_run_that_begins_as_its_worker_stops_keeps_its_lease(
    workers: Workers, number: Signals
) -> None:
    worker = workers.project.worker(processes=1)
    child = idle_child(workers)
    freeze([child])
    run = sent_to(workers, child, "works", 6)
    hear_no_more(worker, child, number)
    thaw([child])
    workers.start_of(run)
    assert_next_run_waits_for(workers, run)


@since("celery", "5.5", "there is no soft shutdown")
def test_a_run_that_begins_during_a_soft_shutdown_keeps_its_lease(workers: Workers) -> None:
    workers.project.environ["SOFT"] = "600"  # `held` does not end meanwhile
    worker = workers.project.worker(processes=2)
    workers.start_of(workers.trigger("held"))
    child = idle_child(workers)
    freeze([child])
    run = sent_to(workers, child, "works", 6)
    worker.send_signal(SIGQUIT)
    wait_until(lambda: "Initiating Soft Shutdown" in workers.project.log_of(worker))
    thaw([child])
    workers.start_of(run)
    assert_next_run_waits_for(workers, run)


@since("celery", "5.5", "a worker may hang once its connection was cut")
def test_a_run_that_begins_as_the_broker_is_lost_keeps_its_lease(workers: Workers) -> None:
    worker = workers.project.worker(processes=1)
    child = idle_child(workers)
    freeze([child])
    run = sent_to(workers, child, "works", 6)
    cut_connections(workers.project.url)
    wait_until(lambda: workers.project.log_of(worker).count("Connected to redis") == 2)
    thaw([child])
    workers.start_of(run)
    assert_next_run_waits_for(workers, run)


def test_a_run_that_begins_as_its_worker_stops_is_ended_at_its_time_limit(
    workers: Workers,
) -> None:
    worker = workers.project.worker(processes=1)
    child = idle_child(workers)
    freeze([child])
    run = sent_to(workers, child, "limited")
    hear_no_more(worker, child, SIGTERM)
    thaw([child])
    workers.project.run_when(run.id, "timed_out")
    assert status_of(worker) == 0


def test_a_run_that_is_sent_to_a_child_that_leaves_goes_to_another_worker(
    workers: Workers,
) -> None:
    """It has run as many tasks as it may, and its worker stops."""
    project = workers.project
    project.environ["LEAVES_LATE"] = "1"
    worker = project.worker("--max-tasks-per-child", "1", processes=1)
    child = idle_child(workers)
    run = sent_to(workers, child, "works", 0)
    hear_no_more(worker, child, SIGTERM)
    (project.directory / "may-leave").touch()
    assert status_of(worker) == 0
    project.worker(processes=1)
    project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["succeeded"]
    assert len(workers.starts(run)) == 1
