"""Sends what waits in the outbox: has the ledger do it, or Celery where that cannot."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

from amqp.exceptions import ChannelError, MessageNacked
from celery import Celery
from kombu.exceptions import OperationalError

from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import StepId
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reader import chunks
from supervisor.logs import get_logger
from supervisor.process import process_name
from supervisor.sending.app_settings import required_settings
from supervisor.sending.context import within_context
from supervisor.sending.messages import Assignment, assignments
from supervisor.sending.queues import UNAVAILABLE, is_unavailable
from supervisor.sending.rabbitmq import BrokerBlocked, listener_of
from supervisor.sending.sender import NothingSent, Sender
from supervisor.store.failures import RedisError

#: Messages that are sent before the ledger records that they were.
RUNS_PER_ROUND = 100

#: When to look again at a run that only another version of this code can send, and at one whose
#: message RabbitMQ refused because its queue is full.
LATER = timedelta(minutes=1)
REFUSED_LATER = timedelta(seconds=5)
BEHIND_OTHERS = timedelta()

log = get_logger("supervisor.publisher")


class Publisher:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        self.sender = Sender(app, ledger)

    def publish(self, run_ids: Sequence[str], until: float = math.inf) -> int:
        """Has Celery send those of the runs that are queued; returns how many the broker took.

        For a batch, its items are sent. If the broker is unavailable, that is logged: the runs stay
        in the outbox and beat sends them later. So do those whose turn has not come `until` then,
        by `time.monotonic()`.
        """
        sent = 0
        try:
            for some in chunks(run_ids, RUNS_PER_ROUND):
                if time.monotonic() > until:
                    break
                runs = self.ledger.runs(some)
                if len(runs) < len(some):  # those without a readable record do not stand in the way
                    self.ledger.put_off(sorted({*some} - {run.id for run in runs}), LATER)
                sent += self._publish(runs, until)
        except UNAVAILABLE as error:
            log.warning("publish failed", runs=len(run_ids), sent=sent, error=str(error))
        return sent

    def send_queued(self, run_ids: Sequence[str], until: float = math.inf) -> int:
        """Has the ledger send those that it can by now, and Celery the others.

        For runs of the outbox, and for those whose messages have vanished.
        """
        others = run_ids
        try:
            is_beside = bool(run_ids) and self.sender.channel_beside is not None
        except UNAVAILABLE as error:
            log.warning("publish failed", runs=len(run_ids), sent=0, error=str(error))
            return 0
        if is_beside:
            rounds = chunks(run_ids, RUNS_PER_ROUND)
            others = [run_id for some in rounds for run_id in self.ledger.send(some)]
        return len(run_ids) - len(others) + self.publish(others, until)

    def _publish(self, runs: Sequence[Run], until: float) -> int:
        queued = [run for run in runs if run.state is RunState.QUEUED]
        sent = self._send_all([run for run in queued if run.foreach is None], until)
        for batch in queued:
            if batch.foreach is not None:
                sent += self._publish_items(batch, batch.foreach, until)
        return sent

    def _publish_items(self, batch: Run, param: str, until: float) -> int:
        """The first items of a batch, some at a time, until the broker is unavailable."""
        sent, run_ids = 0, self._expanded(batch, param)
        while run_ids and (taken := self.publish(run_ids, until)):
            sent += taken
            run_ids = self.ledger.steps.fill(batch.id)
        return sent

    def _expanded(self, batch: Run, param: str) -> list[str]:
        """Ids of the first items of a batch that may be published."""
        step_id = StepId.of(batch.id)
        items = step_id and self.ledger.steps.param(step_id.run, param)
        if not isinstance(items, list):
            what = f"there is no param {param!r}" if items is None else f"{param!r} is no list"
            self.ledger.give_up(batch.id, what)
            return []
        return self.ledger.steps.expand(batch.id, items)

    def _send_all(self, runs: Sequence[Run], until: float) -> int:
        """Sends one message after another, and records which of them the broker took.

        What is not recorded, because this process dies or the broker's answer is lost, is sent once
        more, and dropped as a duplicate.
        """
        to_send = assignments(self.ledger, runs)
        for run in runs:
            if run.id not in to_send:
                self._do_without(run)
        remaining, sent = deque(to_send.values()), 0
        try:
            while remaining and time.monotonic() <= until:
                sent += self._send_until_refused(remaining, until)
        except UNAVAILABLE as error:
            self._note_obstacle((assignment.run for assignment in remaining), str(error))
            if len(remaining) > 1:  # the app's own code may raise the like, for this one alone
                with suppress(RedisError):
                    self.ledger.put_off([remaining[0].run.id], BEHIND_OTHERS)
            raise
        return sent

    def _send_until_refused(self, remaining: deque[Assignment], until: float) -> int:
        """Sends the remaining messages, and takes them off, until RabbitMQ refuses one of them.

        It closes the channel with that, so the others need another.
        """
        taken: dict[str, str] = {}
        blocked: BrokerBlocked | None = None
        try:
            with self.sender.producers.acquire(block=True) as producer:
                try:
                    while remaining and time.monotonic() <= until:
                        assignment = remaining[0]
                        with within_context(assignment.context):
                            queue = self._send(producer, assignment)
                        if queue is not None:
                            taken[assignment.run.id] = queue
                        remaining.popleft()
                except BrokerBlocked as error:
                    blocked = error  # kombu closes the connection of a producer that fails
        except ChannelError as error:
            run = remaining.popleft().run
            self.ledger.put_off([run.id], LATER)
            self._note_obstacle([run], str(error))
            log.error("run not published", job=run.job, run=run.id, error=str(error))
        finally:
            self.ledger.sent(taken)
        if blocked:
            raise blocked
        return len(taken)

    def _send(self, producer: Any, assignment: Assignment) -> str | None:
        """Returns the queue of the message; None if the broker has not taken it."""
        run = assignment.run
        listener = listener_of(producer)
        if listener:
            listener.has_returned()  # not of this message
        try:
            queue = self.sender.send(producer, assignment)
        except UNAVAILABLE as error:
            if isinstance(error.__cause__, MessageNacked):  # to Celery it is one of the connection
                self._put_off(run, "the queue is full")
                return None
            if listener and listener.is_blocked:
                raise BrokerBlocked(str(error)) from error
            raise
        except ChannelError:
            raise
        except NothingSent as error:
            self._put_off(run, str(error))
            return None
        except Exception as error:  # arguments that the task refuses, a payload JSON refuses, ...
            if is_unavailable(error):
                raise OperationalError(str(error).strip()) from error
            self.ledger.give_up(run.id, f"cannot be published: {error}")
            # Without a traceback: its variables have arguments that are masked.
            log.error("run not published", job=run.job, run=run.id, error=repr(error))
            return None
        if listener and listener.has_returned():
            self._put_off(run, "the queue was deleted")
            return None
        return queue

    def _put_off(self, run: Run, reason: str) -> None:
        self.ledger.put_off([run.id], REFUSED_LATER)
        self._note_obstacle([run], reason)
        log.warning("message refused", job=run.job, run=run.id, reason=reason)

    def _note_obstacle(self, runs: Iterable[Run], reason: str) -> None:
        with suppress(RedisError):  # the ledger itself may be what is unavailable
            text = f"its message was not sent: {reason}"
            self.ledger.note_obstacle([run.id for run in runs], process_name(), text)

    def _do_without(self, run: Run) -> None:
        """Deals with a run whose job is gone, or that only another version can read and send."""
        if StepId.of(run.id) is None and self.ledger.knows(run.job):
            self.ledger.put_off([run.id], LATER)
            self._note_obstacle([run], "this version of the code cannot read its job")
        else:
            self.ledger.cancel(run.id, "the job was removed")


def publisher_of(app: Any) -> Publisher:
    """One publisher a process: connections do not survive a fork."""
    return _publisher_of(app, os.getpid())


@cache
def _publisher_of(app: Celery, _pid: int) -> Publisher:
    return Publisher(app, Ledger.open(required_settings(app)))
