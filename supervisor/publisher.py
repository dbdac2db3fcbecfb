"""Sends the messages of queued runs. A message names its run; the ledger knows everything else."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps
from redis.exceptions import RedisError

from supervisor.app import required_settings
from supervisor.delivery import HEADER, message_header
from supervisor.ledger.runs import Ledger
from supervisor.run import Run, RunState
from supervisor.spec import JobSpec

log = structlog.get_logger("supervisor.publisher")


class Publisher:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def publish(self, run_ids: Sequence[str]) -> int:
        """Sends those of the runs that are queued; returns how many the broker took.

        A broker that is away is logged: the runs stay in the outbox and beat sends them later.
        """
        sent: list[str] = []
        try:
            runs = [run for run in self._ledger.runs(run_ids) if run.state is RunState.QUEUED]
            specs = self._ledger.some_specs({run.job for run in runs})
            with self._app.producer_or_acquire() as producer:
                for run in runs:
                    sent += self._send(producer, run, specs.get(run.job))
        except (OperationalError, RedisError, OSError) as error:
            log.warning("publish failed", runs=len(run_ids), sent=len(sent), error=str(error))
        try:
            self._ledger.sent(sent)
        except (RedisError, OSError) as error:
            # They are sent once more; the second messages are dropped as duplicates.
            log.warning("publish not recorded", runs=sent, error=str(error))
        return len(sent)

    def _send(self, producer: Any, run: Run, spec: JobSpec | None) -> list[str]:
        if spec is None:
            self._ledger.cancel(run.id, "job removed from the schedule files")
            return []
        try:
            self._apply_async(producer, run, spec)
        except (OperationalError, RedisError, OSError):
            raise
        except Exception as error:  # arguments that the task refuses, a payload JSON refuses, ...
            self._ledger.cancel(run.id, f"cannot be published: {error}")
            log.exception("run cannot be published", job=run.job, run=run.id)
            return []
        return [run.id]

    def _apply_async(self, producer: Any, run: Run, spec: JobSpec) -> None:
        options: dict[str, Any] = {
            "task_id": run.id,
            "producer": producer,
            "retry": False,  # the outbox is the retry
            "retries": max(0, run.attempt - run.crashes),
        }
        if spec.time_limit:
            options["time_limit"] = spec.time_limit.total_seconds()
        if spec.soft_time_limit:
            options["soft_time_limit"] = spec.soft_time_limit.total_seconds()
        if spec.routed_queue:
            options["queue"] = spec.routed_queue
        options |= run.options
        options["headers"] = {**run.options.get("headers", {}), HEADER: message_header(run, spec)}
        args = spec.args if run.args is None else tuple(run.args)
        kwargs = spec.kwargs if run.kwargs is None else dict(run.kwargs)
        # As Celery's beat does: a task it knows brings its own options and routes.
        task = self._app.tasks.get(spec.task)
        if task is not None:
            task.apply_async(args, kwargs, **options)
        else:
            self._app.send_task(spec.task, args, kwargs, **options)


def as_json(value: Any) -> Any:
    """The value in plain JSON, with kombu's marks for times, UUIDs and decimals.

    They come back as what they were when the message is read.
    """
    return json.loads(dumps(value))


def publisher_of(app: Any) -> Publisher:
    """One publisher a process: connections do not survive a fork."""
    return _publisher_of(app, os.getpid())


@cache
def _publisher_of(app: Celery, _pid: int) -> Publisher:
    return Publisher(app, Ledger.open(required_settings(app)))
