"""Messages that Celery makes once, and the ledger sends: of a job for all its runs, and of calls.

What Celery and kombu would push to Redis is recorded instead of pushed. Marks stand where a message
differs from run to run; the function that queues a run puts the run's own there and pushes it
(ledger/messages.lua).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from typing import Any
from uuid import uuid4

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute

from supervisor.guard.delivery import HEADER, NOMINAL, RETRIES
from supervisor.job.run import Message, Run, RunState, tick_id
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Step, plan
from supervisor.sending.app_settings import broker_address
from supervisor.sending.messages import Assignment, of_job, of_step
from supervisor.sending.queues import is_on_redis
from supervisor.settings import same_database
from supervisor.store.connection import Client

#: Publishes one message with a given producer. Returns the name of its queue.
Publish = Callable[[Any], str]

#: The marks begin with a control character that JSON has in no other place.
MARK = "\x01"
RUN_MARK, TAG_MARK, RETRIES_MARK, NOMINAL_MARK = (MARK + letter for letter in "itrn")

#: A run that stands for all of a job, with an id that occurs in no argument.
NO_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
NO_RUN = tick_id(f"any-{uuid4().hex}", NO_MOMENT)


class Recorder:
    """Stands in for the client of kombu's Redis transport: keeps the commands, and sends none."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        return lambda *args, **_: self.commands.append((command, *args))

    def pipeline(self) -> AbstractContextManager[Recorder]:
        return nullcontext(self)


@cache
def recording_class(own: Any) -> Any:
    """A class of channels of kombu's Redis transport that push nothing.

    recorder: gets what would be pushed. run_id: of a message that stands for all runs of a job.
    marks: how many the last message has.
    """

    class RecordingChannel(own):  # type: ignore[misc]
        recorder: Recorder
        run_id: str | None = None
        marks: int

        def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
            message, self.marks = with_marks(message, self.run_id)
            self.conn_or_acquire = lambda client=None: nullcontext(self.recorder)
            try:
                super()._put(queue, message, **options)
            finally:
                del self.conn_or_acquire

        def _put_fanout(self, *_: Any, **__: Any) -> None:
            self.recorder.publish()

    return RecordingChannel


class Recording:
    """Makes messages as Celery and kombu would push them on a channel, one at a time.

    channel: of kombu's Redis transport. Other threads may use its connection meanwhile.
    """

    def __init__(self, app: Celery, channel: Any) -> None:
        own_class: Any = type(channel)
        kind = recording_class(own_class)
        self.channel = channel
        self._own = kind.__new__(kind)
        vars(self._own).update(vars(channel))
        self._producer = app.amqp.Producer(self._own, auto_declare=False)
        self._declare, self._declared = self._producer.maybe_declare, set[str]()
        self._producer.maybe_declare = self._declare_once  # type: ignore[method-assign,assignment]

    def _declare_once(self, entity: Any, *args: Any, **options: Any) -> None:
        """kombu knows what is declared too, but copies the queue of each message to find it."""
        if entity.name not in self._declared:
            self._declare(entity, *args, **options)
            self._declared.add(entity.name)

    def message(self, publish: Publish, run_id: str | None = None) -> Message | None:
        """What would be pushed, with marks as above.

        run_id: of a run that stands for all of a job; without it the message is that of one run,
        and has marks for its delivery tag and the number of retries. Returns None if that would be
        none or more than one push (a task that sends itself later, a queue that expires, an
        exchange of several queues), and for a message that cannot have marks: with that control
        character of its own, or of a job whose messages expire.
        """
        own = self._own
        own.recorder, own.run_id, own.marks = Recorder(), run_id, 0
        queue = publish(self._producer)
        match own.recorder.commands:
            case [("lpush", key, text)] if own.marks and text.count(escaped(MARK)) == own.marks:
                text = unescaped(text)
                if run_id is None or run_id not in text:
                    return Message(queue, own.global_keyprefix + key, text)
        return None


def with_marks(message: dict[str, Any], run_id: str | None) -> tuple[dict[str, Any], int]:
    """The message with marks where others of its run, or of its job, differ; and their number.

    That is 0, and the message as it is, for one of no run, and one that stands for all of a job and
    expires.
    """
    headers, properties = {**message["headers"]}, {**message["properties"]}
    expires = run_id is not None and (headers["expires"] or headers["eta"])
    if HEADER not in headers or expires:
        return message, 0
    ours = headers[HEADER] = {**headers[HEADER], RETRIES: RETRIES_MARK}
    headers["retries"], properties["delivery_tag"] = RETRIES_MARK, TAG_MARK
    headers["expires"] = None  # of a call, the ledger has it
    marks = 3
    if run_id is not None:
        ours[NOMINAL] = NOMINAL_MARK
        marks += 1
        places = (headers, "id"), (headers, "root_id"), (ours, "run")
        for fields, name in (*places, (properties, "correlation_id")):
            if fields.get(name) == run_id:
                fields[name] = RUN_MARK
                marks += 1
    return {**message, "headers": headers, "properties": properties}, marks


def unescaped(text: str) -> str:
    """The marks as the ledger looks for them; some stand for numbers."""
    for mark in (RETRIES_MARK, NOMINAL_MARK):
        text = text.replace(f'"{escaped(mark)}"', mark)
    return text.replace(escaped(MARK), MARK)


@cache
def escaped(mark: str) -> str:
    """As JSON has it, without quotes."""
    return json.dumps(mark)[1:-1]


# The messages of a job.


def messages_of(
    app: Celery, recording: Recording, spec: JobSpec, send: Callable[..., str]
) -> dict[str, str]:
    """The fields of keys.message for a job: its messages, or why Celery has to make each.

    send: Publisher.send; it may raise whatever the app's own code and the arguments lead to.
    """
    if reason := why_job_apart(app, spec):
        return {"apart": reason}
    fields: dict[str, str] = {}
    for name, key, rules, assignment in parts_of(spec, spec.lock if spec.task else ""):
        if assignment.step.foreach:  # its items are sent, and each has its own arguments
            continue
        made = recording.message(partial(send, assignment=assignment), assignment.run.id)
        if made is None:
            return {"apart": "its message differs from run to run in more than its id"}
        fields |= {f"queue:{name}": made.queue, f"list:{name}": made.key, f"text:{name}": made.text}
        fields[f"for:{name}"] = f"{key}\n{rules}"
    return fields


def parts_of(spec: JobSpec, lock: str = "") -> Iterator[tuple[str, str, str, Assignment]]:
    """Of the job, or of each step: its name, the lock or the digest of its plan, the rules as the
    ledger has them, and the assignment of a run that stands for all. lock: of a job of one task."""
    run = Run(NO_RUN, spec.name, RunState.QUEUED, NO_MOMENT, NO_MOMENT, rules=spec.rules(lock))
    if spec.task is not None:
        yield "", lock, spec.rules_text, of_job(run, spec, spec.task)
    for planned in (plan(spec) or {"steps": ()})["steps"]:
        step = Step.of(planned)
        of = replace(run, id=f"{NO_RUN}/{step.name}", rules=step.rules)
        yield step.name, planned["made"], planned["rules"], of_step(of, step, ())


# Whose messages can be made once.

ELSEWHERE = "the broker's queues are not beside the ledger"


def foreseen_apart(app: Celery, ledger_url: str, spec: JobSpec) -> str | None:
    """Why Celery will have to make the messages of a job, as far as is known before any is made."""
    is_same = same_database(broker_address(app.conf), ledger_url)
    return why_job_apart(app, spec) if is_same else ELSEWHERE


def why_job_apart(app: Celery, spec: JobSpec) -> str | None:
    """As `why_apart`, of all tasks of the job whose messages can be made once."""
    tasks = [spec.task] if spec.task else [step.task for step in spec.steps if not step.foreach]
    if not tasks:
        return "each item of a batch has arguments of its own"
    return next(filter(None, (why_apart(app, task) for task in tasks)), None)


#: A handler of one of these sees each message, and may change it.
LISTENED_TO = {
    "before_task_publish": signals.before_task_publish,
    "after_task_publish": signals.after_task_publish,
    "task_sent": signals.task_sent,
}


def name_of(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"


#: What a task's class may define of how it is sent, and the classes whose definitions are known.
SENDING = ("apply_async", "shadow_name")
KNOWN_CLASSES = ("supervisor.worker.task:GuardedCalls", name_of(Task))


def why_apart(app: Celery, task: str) -> str | None:
    """Why Celery has to make each message of a task, in words; None if one stands for all."""
    own_task: Any = app.tasks.get(task)
    if own_task is not None and own_task.name != task:
        return f"{task} is another name of {own_task.name}"
    task_class: Any = type(own_task)
    if own_task is not None and sends_itself(task_class):
        return f"{task} has an apply_async or a shadow_name of its own"
    if type(app).send_task is not Celery.send_task:
        return "the app has a send_task of its own"
    for name, signal in LISTENED_TO.items():
        if signal.receivers:
            return f"a handler of {name} sees each message"
    if app.conf.task_send_sent_event:
        return "task_send_sent_event is on"
    if not all(isinstance(route, MapRoute) for route in app.amqp.routes):
        return "a router of task_routes is code"
    if not is_sent_by_celery_alone(app):
        return "a library that records traces wraps what sends messages"
    return None


@lru_cache(maxsize=1_000)
def sends_itself(task_class: type) -> bool:
    classes = task_class.__mro__
    return any(vars(c).keys() & {*SENDING} and name_of(c) not in KNOWN_CLASSES for c in classes)


def is_sent_by_celery_alone(app: Celery) -> bool:
    """Whether no library wraps what sends a message, as those do that record traces.

    A wrapper has the names of what it wraps, but the globals of its own module.
    """
    amqp: Any = app.amqp
    parts = ((Task.apply_async, Task), (Celery.send_task, Celery), (amqp.as_task_v2, AMQP))
    return all(getattr(f, "__globals__", {}).get("__name__") == c.__module__ for f, c in parts)


#: Two connections with the same of these see the same keys with the same rights.
SAME_KEYS = ("host", "port", "path", "db", "username")


def is_beside(channel: Any, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
    if not is_on_redis(channel):
        return False
    ours = connected_to(channel.client.connection_pool)
    return ours is not None and ours == connected_to(ledger.connection_pool)


def connected_to(pool: Any) -> tuple[str, ...] | None:
    """The server of a connection pool; None if the pool looks it up, as with Sentinel."""
    known: Mapping[str, Any] = pool.connection_kwargs
    if not (known.get("host") or known.get("path")):
        return None
    return tuple(str(known.get(key) or "") for key in SAME_KEYS)
