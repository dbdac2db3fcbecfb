"""Sends the messages of queued runs. A message names its run; the ledger knows everything else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, cached_property
from typing import Any

from amqp.exceptions import ChannelError
from celery import Celery
from celery.app.task import extract_exec_options  # type: ignore[attr-defined]
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps

from supervisor.guard.delivery import HEADER, LEDGER, RETRIES
from supervisor.job.run import Run, RunState, StepId
from supervisor.job.secrets import masked
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import chunks
from supervisor.ledger.requests import Tick
from supervisor.logs import get_logger
from supervisor.sending.app_settings import owner_of, required_settings
from supervisor.sending.batches import Batch, BrokerBlocked, batch_on
from supervisor.sending.messages import (
    Assignment,
    Assignments,
    PrebuiltMessages,
    is_beside,
    is_listened_to,
    message_header,
)
from supervisor.sending.queues import UNAVAILABLE, producers_of, queue_of
from supervisor.sending.signing import Signer, SigningProducer, content_of, serializer_of_runs
from supervisor.sending.tracing import current_headers, trace_headers, within
from supervisor.settings import is_redis

#: Messages that are sent before the ledger records that they were. Prebuilt ones are sent in
#: portions: the broker takes some while others are made and recorded.
RUNS_PER_ROUND = 500
TICKS_PER_PORTION = 500

#: When to look again at a run that only another version of this code can send, and at one whose
#: message RabbitMQ refused because its queue is full.
LATER = timedelta(minutes=1)
REFUSED_LATER = timedelta(seconds=5)

#: By how much a message outlives the time in which its run has to begin.
KEPT_LONGER_MS = 60_000

log = get_logger("supervisor.publisher")


class Publisher:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        self._assignments = Assignments(ledger)
        self.signer = Signer(ledger.client, ledger.keys)
        self._identity = [ledger.keys.prefix, owner_of(app)]
        #: Where messages were sent last, if its queues are keys beside the ledger's.
        self.channel_beside: Any = None

    @cached_property
    def _producers(self) -> Any:
        return producers_of(self.app)

    @cached_property
    def prebuilt(self) -> PrebuiltMessages:
        return PrebuiltMessages(self.app, self.ledger.client, self.send, self.signer)

    def publish(self, run_ids: Sequence[str]) -> int:
        """Sends those of the runs that are queued; returns how many messages the broker took.

        For a run of several steps, the queued steps are sent; for a batch, its items. If the broker
        is unavailable, that is logged: the runs stay in the outbox and beat sends them later.
        """
        sent = 0
        try:
            for some in chunks(run_ids, RUNS_PER_ROUND):
                runs = self.ledger.runs(some)
                if len(runs) < len(some):  # those without a readable record do not stand in the way
                    self.ledger.put_off(sorted({*some} - {run.id for run in runs}), LATER)
                sent += self._publish(runs)
        except UNAVAILABLE as error:
            log.warning("publish failed", runs=len(run_ids), sent=sent, error=str(error))
        return sent

    def publish_ticks(self, ticks: Sequence[Tick]) -> bool:
        """Sends prebuilt messages of ticks whose runs were queued just now, without reading those.

        What cannot be prebuilt, or the broker did not take, is left in the outbox. Returns whether
        the broker is there.
        """
        if is_listened_to():
            return True
        try:
            if ticks:
                self._push(ticks)
        except UNAVAILABLE as error:
            log.warning("publish failed", runs=len(ticks), error=str(error))
            return False
        except ChannelError as error:  # the outbox finds out which message it is about
            log.info("messages not taken", error=str(error))
        return True

    def _push(self, ticks: Sequence[Tick]) -> None:
        with self._batch() as batch:
            for some in chunks(ticks, TICKS_PER_PORTION):
                if messages := self.prebuilt.messages(some, batch.producer.channel):
                    batch.push(messages)
                    self.ledger.sent(batch.newly_taken())

    def _publish(self, runs: Sequence[Run]) -> int:
        steps = self.ledger.steps.below([run.id for run in runs if run.has_steps])
        open_runs = [*(run for run in runs if not run.has_steps), *self.ledger.runs(steps)]
        queued = [run for run in open_runs if run.state is RunState.QUEUED]
        sent = self._send_all([run for run in queued if run.foreach is None])
        for batch in queued:
            if batch.foreach is not None:
                sent += self._publish_items(batch, batch.foreach)
        return sent

    def _publish_items(self, batch: Run, param: str) -> int:
        """The first items of a batch, some at a time, until the broker is unavailable."""
        sent, run_ids = 0, self._expanded(batch, param)
        while run_ids and (taken := self.publish(run_ids)):
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

    def _send_all(self, runs: Sequence[Run]) -> int:
        assignments = self._assignments.of(runs)
        traces = trace_headers(self.ledger, runs)
        taken: Mapping[str, str] = {}
        try:
            with self._batch() as batch:
                taken = batch.taken
                for run in runs:
                    with within(traces.get(run.id, {})):
                        self._send(batch, run, assignments.get(run.id))
        except ChannelError as error:
            if len(runs) > 1:  # one of them is refused, and takes those behind it along
                return len(taken) + sum(self._send_all([r]) for r in runs if r.id not in taken)
            self.ledger.put_off([run.id for run in runs], LATER)
            log.error("run not published", job=runs[0].job, run=runs[0].id, error=str(error))
        return len(taken)

    @contextmanager
    def _batch(self) -> Iterator[Batch]:
        """Messages that are sent together; what the broker took of them is recorded.

        When a batch fails, it may not be known which of its messages the broker took: those that
        are not recorded are sent once more, and dropped as duplicates.
        """
        with self._producers.acquire(block=True) as producer:
            batch, blocked = Batch(producer), None
            try:
                with batch_on(self.app, producer) as batch:
                    yield batch
            except BrokerBlocked as error:
                blocked = (
                    error  # raised below: kombu closes the connection of a producer that fails
                )
            finally:
                self.ledger.sent(batch.newly_taken())
                if batch.refused:
                    self.ledger.put_off(batch.refused, REFUSED_LATER)
                    log.warning("messages refused", runs=len(batch.refused), run=batch.refused[0])
            channel = producer.channel
            self.channel_beside = channel if is_beside(channel, self.ledger.client) else None
        if blocked:
            raise blocked

    def _send(self, batch: Batch, run: Run, assignment: Assignment | None) -> None:
        if assignment is None:
            self._do_without(run)
            return
        try:
            batch.add(run.id, self.send(batch.producer, assignment))
        except (*UNAVAILABLE, ChannelError):
            raise
        except Exception as error:  # arguments that the task refuses, a payload JSON refuses, ...
            if isinstance(error.__cause__, UNAVAILABLE):
                # Celery listens for a result before it sends; its backend is unavailable.
                raise OperationalError(str(error).strip()) from error
            self.ledger.give_up(run.id, f"cannot be published: {error}")
            # Without a traceback: its variables have arguments that are masked.
            log.error("run not published", job=run.job, run=run.id, error=repr(error))

    def _do_without(self, run: Run) -> None:
        """Deals with a run whose job is gone, or that only another version can read and send."""
        if StepId.of(run.id) is None and self.ledger.knows(run.job):
            self.ledger.put_off([run.id], LATER)
        else:
            self.ledger.cancel(run.id, "the job was removed")

    def would_send(self, task: str, args: Any, kwargs: Any, header: Mapping[str, Any]) -> bool:
        """Whether a message says what the ledger says of its run, or the ledger has no such run.

        Raises RedisError.
        """
        if self.signer.has_signed(task, args, kwargs, header):
            return True
        runs = self.ledger.runs([header["run"]])
        if not runs:
            return True
        assignment = self._assignments.of(runs).get(header["run"])
        if assignment is None:
            return False
        own = message_header(assignment, destination(self.app, assignment))
        if LEDGER in header:  # by it the worker knew that the message is for this ledger
            own[LEDGER] = header[LEDGER]
        if RETRIES not in header:  # a message of an older version
            del own[RETRIES]
        expected = content_of(assignment.step.task, assignment.args, assignment.kwargs, own)
        return content_of(task, args, kwargs, header) == expected

    def send(self, producer: Any, assignment: Assignment) -> str:
        """Sends the message of one run through Celery; gives its queue."""
        run, step, queue = assignment.run, assignment.step, destination(self.app, assignment)
        options: dict[str, Any] = {
            "task_id": run.id,
            "producer": SigningProducer(producer, self.signer),
            "retry": False,  # the outbox is the retry
            "retries": run.retries,
        }
        if mask := run.rules.mask:
            options["argsrepr"] = repr(masked(mask, assignment.args))
            options["kwargsrepr"] = repr(masked(mask, assignment.kwargs))
        for name in ("time_limit", "soft_time_limit", "queue"):
            if value := getattr(step, name):
                options[name] = value
        if step.message_priority is not None:
            options["priority"] = step.message_priority
        if not is_redis(str(self.app.conf.broker_url or "")):
            # RabbitMQ drops it when it comes first then: an ended run leaves no message for good.
            options["expiration"] = (run.rules.start_deadline_ms + KEPT_LONGER_MS) / 1000
        task = self.app.tasks.get(step.task)
        options["serializer"] = serializer_of_runs(self.app, task)
        options |= run.options
        options["headers"] = {
            **current_headers(),
            **options.get("headers", {}),
            HEADER: {**message_header(assignment, queue), LEDGER: self._identity},
        }
        args, kwargs = assignment.args, dict(assignment.kwargs)
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
        return queue


def destination(app: Celery, assignment: Assignment) -> str:
    """Where the message of a run goes."""
    named = assignment.run.options.get("queue") or assignment.step.queue
    return str(named or queue_of(app, assignment.step.task))


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
