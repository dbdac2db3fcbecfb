"""A worker whose queue RabbitMQ refuses says so, and ends."""

from __future__ import annotations

from pathlib import Path

import kombu
from kombu import Queue

from tests.acceptance.project import Project
from tests.rabbitmq.broker import rabbitmq
from tests.waiting import status_of, wait_until

SCHEDULE = "jobs: {rare: {task: team.work, every: 24h, paused: true}}"


def declare(url: str, **arguments: int) -> None:
    with kombu.Connection(url) as connection:
        queue = Queue("celery", queue_arguments=arguments)(connection.default_channel)
        queue.delete()
        queue.declare()


def test_a_worker_whose_queue_has_other_arguments_ends(redis_url: str, tmp_path: Path) -> None:
    directories = tmp_path / "broker", tmp_path / "project"
    for directory in directories:
        directory.mkdir()
    with rabbitmq(directories[0]) as broker:
        project = Project(directories[1], redis_url, broker.url)
        project.schedule(SCHEDULE)
        with (project.directory / "team.py").open("a") as team:
            team.write("app.conf.task_queue_max_priority = 9\n")
        try:
            declare(broker.url)
            refused = project.hire()
            assert status_of(refused, 60) == 1
            log = project.log_of(refused)
            assert "RabbitMQ refuses a queue of this worker: Queue.declare: (406)" in log
            declare(broker.url, **{"x-max-priority": 9})
            worker = project.worker()
            declare(broker.url)
            broker.ctl("close_all_connections", "it has had its queue, which may come back")
            wait_until(lambda: "Connection to broker lost" in project.log_of(worker), 30)
            declare(broker.url, **{"x-max-priority": 9})
            wait_until(lambda: broker.consumers("celery") == 1, 60)
            assert worker.poll() is None
        finally:
            project.stop()
