"""Who is there, by their own word: workers with what they consume, beats with who leads."""

from __future__ import annotations

import signal

from celery import Celery

from supervisor.ledger.presence import Roll, WorkerFacts
from tests.acceptance.project import Project
from tests.waiting import patience, wait_until


def roll(project: Project) -> Roll:
    return project.ledger.presences.roll()


def worker(project: Project) -> WorkerFacts:
    [found] = wait_until(lambda: roll(project).workers, 20)
    return found


def test_a_worker_is_listed_with_its_queues_until_it_stops(
    project: Project,
) -> None:
    process = project.worker(queues="celery,serial.slow", processes=3)
    said = worker(project)
    assert said.queues == ("celery", "serial.slow")
    assert said.pool_size == 3
    # The names come after it, once for all that know the same.
    wait_until(lambda: "team.work" in project.ledger.presences.tasks([said]))
    [present] = roll(project).present
    assert present.pid == process.pid
    assert present.broker.is_ledger
    with Celery(broker=project.url) as app:
        app.control.cancel_consumer("celery")
        wait_until(lambda: worker(project).queues == ("serial.slow",), 20)
        app.control.add_consumer("reports")
        wait_until(lambda: worker(project).queues == ("reports", "serial.slow"), 20)
    wait_until(lambda: roll(project).present[0].clock_offset is not None, 20)
    offset = roll(project).present[0].clock_offset
    assert offset is not None
    assert abs(offset.total_seconds()) < patience(1)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: process.poll() is not None, 20)
    assert roll(project) == Roll((), {})


def test_a_killed_worker_is_missed(project: Project) -> None:
    process = project.worker()
    said = worker(project)
    process.kill()
    wait_until(lambda: roll(project).workers == [], 20)
    assert list(roll(project).last_seen) == [said.name]
