"""The messages that beat has Celery send, or takes out of queues.

What was just admitted and is not sent yet, what rescue brought back, what a worker that died could
not hand over: all of that waits in the outbox. Messages that vanished are sent again
(vanished_messages.py), and those of ended runs are taken out of their queues (sweeper.py).
"""

from __future__ import annotations

import time

from celery import Celery

from supervisor.beat.sweeper import Sweeper
from supervisor.beat.turn import Turn
from supervisor.beat.vanished_messages import VanishedMessages
from supervisor.ledger.ledger import Ledger
from supervisor.sending.publisher import Publisher

RUNS_PER_PUBLISH = 500

#: For how long a turn goes on with that. A broker that is elsewhere takes one message at a time: a
#: turn that sends thousands must not outlive the leader's lock.
PUBLISHING_SECONDS = 2.0


class Publishing:
    def __init__(self, app: Celery, ledger: Ledger, publisher: Publisher) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._vanished = VanishedMessages(app, ledger)
        self._sweeper = Sweeper(app, ledger)

    def is_due(self, turn: Turn) -> bool:
        return turn.has_outbox or turn.poll.has_sent or turn.poll.has_leftovers

    def do(self, turn: Turn) -> None:
        if turn.has_outbox:
            turn.has_more |= not self._publish_outbox()
        if turn.poll.has_sent:
            until = time.monotonic() + PUBLISHING_SECONDS
            self._publisher.send_queued(self._vanished.to_resend(turn.poll.at), until)
        if turn.poll.has_leftovers:
            self._sweeper.sweep()

    def _publish_outbox(self) -> bool:
        """Returns whether the outbox has no more to send now."""
        until = time.monotonic() + PUBLISHING_SECONDS
        while run_ids := self._ledger.outbox(RUNS_PER_PUBLISH):
            sent = self._publisher.send_queued(run_ids, until)
            if time.monotonic() > until:
                return False
            if sent < RUNS_PER_PUBLISH:
                return True
        return True
