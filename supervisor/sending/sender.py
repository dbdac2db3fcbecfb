"""Has Celery send the message of one run, or make it for the function that queues the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from celery import Celery
from celery.app.task import extract_exec_options  # type: ignore[attr-defined]

from supervisor.guard.delivery import HEADER, LEDGER, own_headers
from supervisor.job.run import Message
from supervisor.job.secrets import masked
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import broker_address, identity_of, settings_of
from supervisor.sending.content import from_json, serializer_of_runs
from supervisor.sending.context import headers_of_context, without_context
from supervisor.sending.messages import Assignment, message_header
from supervisor.sending.producers import RunProducer, Unsent
from supervisor.sending.queues import producers_of, queue_of
from supervisor.sending.recording import Recording, is_beside
from supervisor.store.address import is_redis, same_database

#: By how much a message outlives the time in which its run has to begin.
KEPT_LONGER_MS = 60_000


class NothingSent(Exception):
    """The app's own code has put no message into a queue: a class for unique tasks, for example."""

    def __init__(self, task: str) -> None:
        super().__init__(f"{task} has an apply_async of its own, which sent nothing")


class Sender:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        self._identity = identity_of(app, ledger.keys.prefix)
        self._recordings: list[Recording] = []

    @cached_property
    def producers(self) -> Any:
        return producers_of(self.app)

    @cached_property
    def channel_beside(self) -> Any:
        """A channel to the broker, whose queues are keys beside the ledger's; None where they are
        not."""
        settings = settings_of(self.app)
        if not (settings and same_database(broker_address(self.app.conf), settings.redis_url)):
            return None
        with self.producers.acquire(block=True) as producer:
            return producer.channel if is_beside(producer.channel, self.ledger.client) else None

    def forget_channel(self) -> None:
        """It is looked up again: its connection may be lost."""
        vars(self).pop("channel_beside", None)
        self._recordings = []

    def message_of_call(self, assignment: Assignment) -> Message | None:
        """The message of a run that is to be admitted, made with all of the app's own code.

        None where the function that queues the run cannot push it: the broker's queues are not
        beside the ledger, for example. Raises NothingSent.
        """
        if not self.channel_beside:
            return None
        changes: list[str] = []
        recording = self._recording()
        made = recording.message(partial(self.send, assignment=assignment, note=changes.append))
        self._recordings.append(recording)
        return replace(made, content=changes[-1]) if made and changes else made

    def own_headers_of(self, assignment: Assignment) -> dict[str, Any]:
        """The headers that the app's own code gives the message of a run here.

        Raises NothingSent, and all that sending it would raise.
        """
        with self.producers.acquire(block=True) as producer:
            unsent = Unsent(producer)
            self.send(unsent, assignment, note=lambda _: None)
        return own_headers(unsent.headers)

    def _recording(self) -> Recording:
        """One that no other thread uses meanwhile. To make one takes a quarter of a call's time."""
        with suppress(IndexError):
            return self._recordings.pop()
        return Recording(self.app, self.channel_beside)

    def send(
        self,
        producer: Any,
        assignment: Assignment,
        note: Callable[[str], None] | None = None,
    ) -> str:
        """Sends the message of one run through Celery; gives its queue.

        note: as in RunProducer; by default the ledger notes it. Raises NothingSent.
        """
        step, queue = assignment.step, destination(self.app, assignment)
        # The app's own code may change them in place: those of a job are for its other runs too.
        args, kwargs = deepcopy((assignment.args, dict(assignment.kwargs)))
        named = ",".join(each for each in assignment.references if isinstance(each, str))
        note = note or partial(self.ledger.note_content, assignment.run.id)
        context = without_context(own_headers(from_json(assignment.context)))
        run_producer = RunProducer(producer, (step.task, args, kwargs), named, note, context)
        task = self.app.tasks.get(step.task)
        options = {
            **self._options(assignment),
            "serializer": serializer_of_runs(self.app, task),
            **assignment.run.options,
            "headers": self._headers(assignment, queue),
            "producer": run_producer,
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

    def _options(self, assignment: Assignment) -> dict[str, Any]:
        """Of `apply_async`, where the caller of the run has named no others."""
        run, step = assignment.run, assignment.step
        options: dict[str, Any] = {
            "task_id": run.id,
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
        if not is_redis(str(self.app.conf.broker_url or "")):
            # RabbitMQ drops it when it comes first then: an ended run leaves no message for good.
            options["expiration"] = (run.rules.start_deadline_ms + KEPT_LONGER_MS) / 1000
            options["mandatory"] = True  # rabbitmq.py
        return options

    def _headers(self, assignment: Assignment, queue: str) -> dict[str, Any]:
        run = assignment.run
        # As django-celery-beat names an entry to result backends; a call is known by its task.
        periodic = {"periodic_task_name": run.job} if run.job != assignment.step.task else {}
        return {
            **periodic,
            **headers_of_context(),
            **from_json(run.options.get("headers", {})),
            HEADER: {**message_header(assignment, queue), LEDGER: self._identity},
        }


def destination(app: Celery, assignment: Assignment) -> str:
    """Where the message of a run goes."""
    step, named = assignment.step, assignment.run.options.get("queue") or assignment.step.queue
    return queue_of(app, step.task, assignment.args, assignment.kwargs, named)
