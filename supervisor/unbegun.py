"""Runs whose message vanished between broker and worker: sent, not begun, not in their queue.

A worker that was killed between taking a message and beginning its run leaves no other trace. A
message published again in error is dropped as a duplicate.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from celery import Celery

from supervisor.ledger.replies import ms_of
from supervisor.ledger.runs import Ledger
from supervisor.spec import JobSpec

#: A worker that is there begins a run sooner than this after it took the message.
PATIENCE = timedelta(seconds=15)
CHECK_INTERVAL = timedelta(seconds=5)
RUNS_PER_CHECK = 200


class Unbegun:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._next_check: datetime | None = None

    def vanished(self, now: datetime) -> list[str]:
        """Ids of the runs to be published again; asks the broker at most every 5 seconds."""
        if self._next_check and now < self._next_check:
            return []
        self._next_check = now + CHECK_INTERVAL
        run_ids = self._ledger.client.zrangebyscore(
            self._ledger.keys.sent, "-inf", ms_of(now - PATIENCE), 0, RUNS_PER_CHECK
        )
        runs = self._ledger.runs(run_ids)
        specs = self._ledger.some_specs({run.job for run in runs})
        by_queue = defaultdict(list)
        for run in runs:
            if run.job in specs:
                by_queue[self._queue_of(specs[run.job])].append(run.id)
        if not by_queue:
            return []
        with self._app.connection_for_write() as connection:
            channel = connection.default_channel
            return [
                run_id
                for queue, waiting in by_queue.items()
                if not message_count(channel, queue)
                for run_id in waiting
            ]

    def _queue_of(self, spec: JobSpec) -> str:
        own = getattr(self._app.tasks.get(spec.task), "queue", None)
        if spec.routed_queue or own:
            return str(spec.routed_queue or own)
        return str(self._app.amqp.router.route({}, spec.task)["queue"].name)


def message_count(channel, queue: str) -> int:  # type: ignore[no-untyped-def]
    """Messages in the queue; 0 also for one that does not exist (an empty list in Redis)."""
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except channel.connection.client.channel_errors:
        return 0
