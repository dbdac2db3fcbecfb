"""Sends the messages of queued runs: has the ledger do it, or Celery where that cannot.

A message names its run; the ledger knows everything else.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import cache, cached_property, partial
from typing import Any

from amqp.exceptions import ChannelError, MessageNacked
from celery import Celery
from celery.app.task import extract_exec_options  # type: ignore[attr-defined]
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps

from supervisor.guard.delivery import HEADER, LEDGER, own_headers
from supervisor.job.run import Message, Run, RunState, StepId
from supervisor.job.secrets import masked
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import chunks
from supervisor.logs import get_logger
from supervisor.process import process_name
from supervisor.sending.app_settings import broker_address, owner_of, required_settings
from supervisor.sending.content import (
    Captured,
    RunProducer,
    publish_captured,
    serializer_of_runs,
)
from supervisor.sending.context import headers_of_context, within_context, without_context
from supervisor.sending.messages import Assignment, Assignments, message_header
from supervisor.sending.queues import (
    UNAVAILABLE,
    is_unavailable,
    make_serial_queues,
    producers_of,
    queue_of,
)
from supervisor.sending.rabbitmq import BrokerBlocked, listener_of
from supervisor.sending.templates import Publish, Recording, is_beside
from supervisor.settings import is_redis, same_database
from supervisor.store.connection import RedisError

#: Messages that are sent before the ledger records that they were.
RUNS_PER_ROUND = 100

#: When to look again at a run that only another version of this code can send, and at one whose
#: message RabbitMQ refused because its queue is full.
LATER = timedelta(minutes=1)
REFUSED_LATER = timedelta(seconds=5)

#: By how much a message outlives the time in which its run has to begin.
KEPT_LONGER_MS = 60_000

log = get_logger("supervisor.publisher")


class NothingSent(Exception):
    """The app's own code has put no message into a queue: a class for unique tasks, for example."""

    def __init__(self, task: str) -> None:
        super().__init__(f"{task} has an apply_async of its own, which sent nothing")


class Publisher:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        make_serial_queues(app)
        self.app = app
        self.ledger = ledger
        self._assignments = Assignments(ledger)
        self._identity = [ledger.keys.prefix, owner_of(app)]
        #: Where messages were sent last, if its queues are keys beside the ledger's.
        self.channel_beside: Any = None
        self._recordings: list[Recording] = []

    @cached_property
    def _producers(self) -> Any:
        return producers_of(self.app)

    @cached_property
    def _is_on_redis(self) -> bool:
        return is_redis(str(self.app.conf.broker_url or ""))

    @cached_property
    def _is_beside_by_address(self) -> bool:
        ledger = required_settings(self.app).redis_url
        return same_database(broker_address(self.app.conf), ledger)

    def _note(self, channel: Any) -> None:
        self.channel_beside = channel if is_beside(channel, self.ledger.client) else None

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
        if self.channel_beside is not None:
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
        assignments = self._assignments.of(runs)
        contexts = self._contexts(runs)
        remaining, sent = deque(runs), 0
        try:
            while remaining and time.monotonic() <= until:
                sent += self._send_until_refused(remaining, assignments, contexts, until)
        except UNAVAILABLE as error:
            self._note_obstacle(remaining, str(error))
            raise
        return sent

    def _send_until_refused(
        self,
        remaining: deque[Run],
        assignments: Mapping[str, Assignment],
        contexts: Mapping[str, Mapping[str, Any]],
        until: float,
    ) -> int:
        """Sends the remaining runs, and takes them off, until RabbitMQ refuses one of them.

        It closes the channel with that, so the others need another.
        """
        taken: dict[str, str] = {}
        blocked: BrokerBlocked | None = None
        try:
            with self._producers.acquire(block=True) as producer:
                try:
                    while remaining and time.monotonic() <= until:
                        run = remaining[0]
                        context = contexts.get(run.id, {})
                        with within_context(context):
                            queue = self._send(producer, run, assignments.get(run.id), context)
                        if queue is not None:
                            taken[run.id] = queue
                        remaining.popleft()
                except BrokerBlocked as error:
                    blocked = error  # kombu closes the connection of a producer that fails
                channel = producer.channel
            self._note(channel)
        except ChannelError as error:
            run = remaining.popleft()
            self.ledger.put_off([run.id], LATER)
            self._note_obstacle([run], str(error))
            log.error("run not published", job=run.job, run=run.id, error=str(error))
        finally:
            self.ledger.sent(taken)
        if blocked:
            raise blocked
        return len(taken)

    def _contexts(self, runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
        """By run id, the headers that code beside Celery's gave its first message in the caller.

        Those of a step are its run's.
        """
        step_ids = {run.id: step_id.run for run in runs if (step_id := StepId.of(run.id))}
        of_steps = self.ledger.steps.options(sorted({*step_ids.values()})) if step_ids else {}
        found: dict[str, Mapping[str, Any]] = {}
        for run in runs:
            options = of_steps.get(step_ids[run.id], {}) if run.id in step_ids else run.options
            first = run.message.headers if run.message else {}
            found[run.id] = {**own_headers(first), **options.get("headers", {})}
        return found

    def _send(
        self,
        producer: Any,
        run: Run,
        assignment: Assignment | None,
        context: Mapping[str, Any],
    ) -> str | None:
        """Returns the queue of the message; None if the broker has not taken it."""
        if assignment is None:
            self._do_without(run)
            return None
        listener = listener_of(producer)
        if listener:
            listener.has_returned()  # not of this message
        try:
            own = run.message
            if own and not own.key and not run.is_changed:
                queue = own.queue
                publish_captured(self.app, producer, own.text, queue, run.retries)
            else:
                queue = self.send(producer, assignment, headers=context)
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

    def message_of_call(self, assignment: Assignment) -> Message:
        """The message of a run that is to be admitted, made with all of the app's own code.

        Raises NothingSent. Where the broker's queues are beside the ledger, it is made for the
        function that queues the run. Else it is as Celery gives it to kombu.
        """
        said: list[str] = []
        if made := self._recorded(partial(self.send, assignment=assignment, note=said.append)):
            return replace(made, said=said[-1]) if said else made
        said.clear()
        with self._producers.acquire(block=True) as producer:
            captured = Captured(producer)
            queue = self.send(captured, assignment, said.append)
        return Message(queue, "", captured.text, *said[-1:])

    def _recorded(self, publish: Publish) -> Message | None:
        """As `Recording.message`; None if it is not known that the queues are beside the ledger."""
        if self.channel_beside is None and self._is_beside_by_address:
            # The ledger's own server: to connect to it is no wait for another one.
            with self._producers.acquire(block=True) as producer:
                self._note(producer.channel)
        if (channel := self.channel_beside) is None:
            return None
        recording = None
        with suppress(IndexError):
            recording = self._recordings.pop()  # no other thread has it meanwhile
        if recording is None or recording.channel is not channel:
            recording = Recording(self.app, channel)
        made = recording.message(publish)
        self._recordings.append(recording)
        return made

    def send(
        self,
        producer: Any,
        assignment: Assignment,
        note: Callable[[str], None] | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> str:
        """Sends the message of one run through Celery; gives its queue.

        note and headers: as in RunProducer; by default the ledger notes it. Raises NothingSent.
        """
        run, step, queue = assignment.run, assignment.step, destination(self.app, assignment)
        # The app's own code may change them in place: those of a job are for its other runs too.
        args, kwargs = deepcopy((assignment.args, dict(assignment.kwargs)))
        named = ",".join(each for each in assignment.references if isinstance(each, str))
        note = note or partial(self.ledger.note_content, run.id)
        context = without_context(own_headers(headers or {}))
        run_producer = RunProducer(producer, (step.task, args, kwargs), named, note, context)
        options: dict[str, Any] = {
            "task_id": run.id,
            "producer": run_producer,
            "retry": False,  # the outbox is the retry
            "retries": run.retries,
            "add_to_parent": False,  # the caller has done that
        }
        if mask := run.rules.mask:
            options["argsrepr"] = repr(masked(mask, assignment.args))
            options["kwargsrepr"] = repr(masked(mask, assignment.kwargs))
        for name in ("time_limit", "soft_time_limit", "queue"):
            if value := getattr(step, name):
                options[name] = value
        if step.message_priority is not None:
            options["priority"] = step.message_priority
        if not self._is_on_redis:
            # RabbitMQ drops it when it comes first then: an ended run leaves no message for good.
            options["expiration"] = (run.rules.start_deadline_ms + KEPT_LONGER_MS) / 1000
            options["mandatory"] = True  # rabbitmq.py
        task = self.app.tasks.get(step.task)
        options["serializer"] = serializer_of_runs(self.app, task)
        options |= run.options
        # As django-celery-beat names an entry to result backends; a call is known by its task.
        periodic = {"periodic_task_name": run.job} if run.job != step.task else {}
        options["headers"] = {
            **periodic,
            **headers_of_context(),
            **options.get("headers", {}),
            HEADER: {**message_header(assignment, queue), LEDGER: self._identity},
        }
        # As Celery's beat does: a task it knows brings its own options and routes.
        if task is None:
            self.app.send_task(step.task, args, kwargs, **options)
        elif assignment.fills_up or self.app.conf.task_always_eager:
            # `apply_async` would refuse: the worker fills in some of the arguments. Or it would
            # call the body here, without a lease.
            own = {k: v for k, v in extract_exec_options(task).items() if v is not None}
            self.app.send_task(task.name, args, kwargs, task_type=task, **{**own, **options})
        else:
            task.apply_async(args, kwargs, **options)
        if not run_producer.has_sent:
            raise NothingSent(step.task)
        return queue


def destination(app: Celery, assignment: Assignment) -> str:
    """Where the message of a run goes."""
    step, named = assignment.step, assignment.run.options.get("queue") or assignment.step.queue
    return queue_of(app, step.task, assignment.args, assignment.kwargs, named)


def as_json(value: Any) -> Any:
    """The value in plain JSON, with kombu's marks for times, UUIDs and decimals.

    The reader of the message gets them back as what they were.
    """
    return json.loads(dumps(value))


def publisher_of(app: Any) -> Publisher:
    """One publisher a process: connections do not survive a fork."""
    return _publisher_of(app, os.getpid())


@cache
def _publisher_of(app: Celery, _pid: int) -> Publisher:
    return Publisher(app, Ledger.open(required_settings(app)))
