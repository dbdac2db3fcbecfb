"""Runs whose message vanished between broker and worker: sent, not begun, not in their queue.

A worker that is killed between taking a message and beginning its run leaves no other trace. A
queue that holds fewer messages than were sent for runs that have not begun has lost some, and those
sent first are the likeliest. They are published again; a message that was there all the same is
dropped as a duplicate. A run that is sent again and again waits longer each time: its worker may
take more than one message at a time and keep them to itself.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from supervisor.assignments import Assignments
from supervisor.ledger.runs import Ledger
from supervisor.queues import channel_of, destination, message_count
from supervisor.run import Run

#: A worker that is there begins a run sooner than this after it took the message.
PATIENCE = timedelta(seconds=2)
LONGEST_PATIENCE = timedelta(minutes=2)

CHECK_INTERVAL = timedelta(seconds=1)
RUNS_PER_CHECK = 1_000

#: A broker that hangs takes seconds to say nothing; beat has ticks to emit meanwhile.
AWAY_INTERVAL = timedelta(seconds=5)

log = structlog.get_logger("supervisor.unbegun")


class Unbegun:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._assignments = Assignments(ledger)
        self._next_check: datetime | None = None

    def vanished(self, now: datetime) -> list[str]:
        """Ids of the runs to be published again; asks the broker at most once a second.

        None of them while the broker is away: nobody can tell then what is in its queues.
        """
        if self._next_check and now < self._next_check:
            return []
        self._next_check = now + CHECK_INTERVAL
        # Nearly always they are all young; to read them to see it would keep beat busy.
        first = self._ledger.first_sent_at()
        if first is None or now - first <= PATIENCE:
            return []
        sent = self._ledger.sent_unbegun(RUNS_PER_CHECK)
        if not any(is_overdue(run, now) for run in sent):
            return []
        by_queue: dict[str, list[Run]] = defaultdict(list)
        for assignment in self._assignments.of(sent).values():
            by_queue[destination(self._app, assignment)].append(assignment.run)
        try:
            with channel_of(self._app) as channel:
                return [
                    run.id
                    for queue, runs in by_queue.items()
                    for run in runs[: max(0, len(runs) - message_count(channel, queue))]
                    if is_overdue(run, now)
                ]
        except (OperationalError, OSError) as error:
            self._next_check = now + AWAY_INTERVAL
            log.warning("queues not asked for", error=str(error))
            return []


def is_overdue(run: Run, now: datetime) -> bool:
    patience = min(PATIENCE * 2 ** min(run.sends - 1, 10), LONGEST_PATIENCE)
    return run.sent_at is not None and now - run.sent_at > patience
