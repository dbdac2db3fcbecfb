"""Prebuilt messages: those of ticks, which differ in their run alone, without Celery for each.

Where the broker's queues are keys beside the ledger's, the function that admits a run also sends
its message (ledger/admit.lua), and needs the text of the message for that:

1. Jobs of one task, with the same queue, priority, limits and retries, have messages of one shape.
   Celery and kombu make it, like any other message, for a run that stands for all of them.
2. A job's envelope is the shape with the job's own name, rules and arguments in it.
3. For each run its id, its nominal time and a fresh delivery tag are put in their places.

Messages that may differ in more are not prebuilt, and their runs go through the outbox: those whose
arguments are masked or name secrets; all while a signal handler listens to messages being sent;
those of tasks and routers with code of their own for it; and those whose shape, filled with what it
was made of, differs from what Celery had made.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from celery import Celery, Task, signals
from celery.app.routes import MapRoute
from celery.utils.saferepr import saferepr
from kombu.serialization import dumps as serialized
from kombu.utils.json import dumps

from supervisor.guard.delivery import HEADER
from supervisor.job.run import Run, RunState, tick_id
from supervisor.job.secrets import has_references
from supervisor.job.spec import KEPT_AT_HAND, JobSpec
from supervisor.ledger.connection import Client
from supervisor.ledger.requests import Message, Tick
from supervisor.logs import get_logger
from supervisor.sending.app_settings import broker_address, required_settings
from supervisor.sending.assignments import Assignment, of_job
from supervisor.sending.queues import UNAVAILABLE
from supervisor.sending.signing import Signer, content_of
from supervisor.settings import same_database

#: Two connections with the same of these see the same keys with the same rights.
SAME_KEYS = ("host", "port", "path", "db", "username")


def name_of(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"


#: A handler of one of these sees each message, and may change it.
LISTENED_TO = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)

#: What a task's class may define of how it is sent, and the classes whose definitions are known.
SENDING = ("apply_async", "shadow_name")
KNOWN_CLASSES = ("supervisor.worker.task:GuardedCalls", name_of(Task))

#: Publishes with a given producer, as everything is published.
Send = Callable[[Any, Assignment], str]


class Recorder:
    """In place of the client of kombu's Redis transport: keeps the commands, and sends none."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        return lambda *args, **_: self.commands.append((command, *args))

    def pipeline(self) -> AbstractContextManager[Recorder]:
        return nullcontext(self)


def recorded(app: Celery, channel: Any, send: Send, assignment: Assignment) -> Message | None:
    """What Celery and kombu would push for a run, without pushing it.

    channel: the caller's own. None where that is more than one push: a queue that expires, an
    exchange of several queues.
    """
    recorder, put = Recorder(), channel._put

    def record(queue: str, message: Any, **options: Any) -> None:
        channel.conn_or_acquire = lambda client=None: nullcontext(recorder)
        try:
            put(queue, message, **options)
        finally:
            del channel.conn_or_acquire

    channel._put, channel._put_fanout = record, recorder.publish
    try:
        queue = send(app.amqp.Producer(channel, auto_declare=False), assignment)
    finally:
        del channel._put, channel._put_fanout
    match recorder.commands:
        case [("lpush", key, text)]:
            return Message(queue, channel.global_keyprefix + key, text)
        case _:
            return None


def is_ordinary(app: Celery, name: str) -> bool:
    """Whether Celery alone decides how a task is sent, and no handler or event tells of it."""
    classes = type(app.tasks.get(name)).__mro__
    own = [c for c in classes if vars(c).keys() & {*SENDING} and name_of(c) not in KNOWN_CLASSES]
    return (
        not own
        and type(app).send_task is Celery.send_task
        and not is_listened_to()
        and not app.conf.task_send_sent_event
        and all(isinstance(route, MapRoute) for route in app.amqp.routes)
    )


def is_listened_to() -> bool:
    return any(signal.receivers for signal in LISTENED_TO)


def is_beside(channel: Any, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
    if not hasattr(channel, "priority_steps"):
        return False
    ours = connected_to(channel.client.connection_pool)
    return ours is not None and ours == connected_to(ledger.connection_pool)


def connected_to(pool: Any) -> tuple[str, ...] | None:
    """Of a connection pool; None for one that looks its server up, as with Sentinel."""
    known = pool.connection_kwargs
    if not (known.get("host") or known.get("path")):
        return None
    return tuple(str(known.get(key) or "") for key in SAME_KEYS)


#: A nominal time that no schedule has, and its run, which stands for all.
NOMINAL = datetime(1, 1, 1, tzinfo=UTC)
RUN = tick_id("any", NOMINAL)

OWN_OF_A_JOB = ("job", "rules", "argsrepr", "kwargsrepr", "body", "signature")

#: They stand for a job's own values, and occur in no job, argument or setting.
PLACEHOLDERS = {name: f"<{name} of {RUN}>" for name in OWN_OF_A_JOB}

log = get_logger("supervisor.messages")


@dataclass(frozen=True, slots=True)
class Envelope:
    """`queue` and `key` as in a Message."""

    queue: str
    key: str
    text: str
    delivery_tag: str
    signature: str
    content: str

    def message(self, tick: Tick, signer: Signer) -> Message:
        nominal = tick.nominal_at.isoformat()
        text = self.text.replace(RUN, tick.run_id).replace(NOMINAL.isoformat(), nominal)
        own = signer.signature(tick.run_id, nominal, self.content)
        text = text.replace(self.signature, own)
        return Message(self.queue, self.key, text.replace(self.delivery_tag, str(uuid4())))


@dataclass(frozen=True, slots=True)
class Shape:
    """A message with placeholders where jobs differ.

    `embed`: what its body has beside the arguments; `levels` and `length` bound their `repr`.
    """

    queue: str
    key: str
    text: str
    delivery_tag: str
    embed: Mapping[str, Any]
    levels: int
    length: int

    def envelope(self, spec: JobSpec, signer: Signer) -> Envelope:
        _, _, body = serialized((spec.args, spec.kwargs, self.embed), serializer="json")
        values = {
            "job": json.dumps(spec.name),
            "rules": spec.rules_text,
            "argsrepr": json.dumps(saferepr(spec.args, self.length, self.levels)),
            "kwargsrepr": json.dumps(saferepr(spec.kwargs, self.length, self.levels)),
            "body": json.dumps(b64encode(body.encode()).decode()),
        }
        text = self.text
        for name, value in values.items():
            text = text.replace(json.dumps(PLACEHOLDERS[name]), value)
        headers = json.loads(text)["headers"]
        content = content_of(headers["task"], spec.args, spec.kwargs, headers[HEADER])
        signature = signer.signature(RUN, NOMINAL.isoformat(), content)
        text = text.replace(PLACEHOLDERS["signature"], signature)
        return Envelope(self.queue, self.key, text, self.delivery_tag, signature, content)


def with_placeholders(message: dict[str, Any]) -> str:
    """The message as text, with a placeholder for each value that is a job's own."""
    headers = message["headers"]
    own = {
        **headers[HEADER],
        **{name: PLACEHOLDERS[name] for name in ("job", "rules", "signature")},
    }
    reprs = {name: PLACEHOLDERS[name] for name in ("argsrepr", "kwargsrepr")}
    return dumps(
        {**message, "body": PLACEHOLDERS["body"], "headers": {**headers, **reprs, HEADER: own}}
    )


def without_trace(message: dict[str, Any]) -> dict[str, Any]:
    """Without the trace and the time that Sentry's SDK adds, which are those of one message.

    It keeps copies in a header `headers`, which messages of ticks do not have otherwise.
    """
    headers = message["headers"]
    if not any(name.startswith("sentry-") for name in headers):
        return message
    own = {
        name: value
        for name, value in headers.items()
        if not name.startswith("sentry-") and name not in ("baggage", "headers")
    }
    return {**message, "headers": own}


class Envelopes:
    """`send` publishes with a given producer, as everything is published."""

    def __init__(self, app: Celery, ledger: Client, send: Send, signer: Signer) -> None:
        self._app = app
        self._ledger = ledger
        self._send = send
        self._signer = signer
        self._shapes: dict[tuple[Any, ...], Shape | None] = {}
        self._envelopes: dict[str, tuple[JobSpec, Envelope | None]] = {}
        # A broker that is elsewhere, and may be unavailable, is not asked.
        may_be_beside = same_database(broker_address(app.conf), required_settings(app).redis_url)
        self._are_beside: bool | None = None if may_be_beside else False

    def filled(self, tick: Tick) -> Tick:
        """The tick with its message, where that can be prebuilt."""
        if is_listened_to():
            return tick
        envelope = self.prebuild(tick.spec)
        return tick if envelope is None else tick.sent_as(envelope.message(tick, self._signer))

    def unknown_of(self, jobs: Iterable[str]) -> list[str]:
        """Those of the jobs for which nothing is prebuilt yet."""
        return [job for job in jobs if job not in self._envelopes]

    def prebuild(self, spec: JobSpec) -> Envelope | None:
        made_for, envelope = self._envelopes.get(spec.name, (None, None))
        if made_for is not spec:
            if len(self._envelopes) >= KEPT_AT_HAND:
                self._envelopes.clear()
            envelope = self._envelope(spec)
            self._envelopes[spec.name] = spec, envelope
        return envelope

    def _envelope(self, spec: JobSpec) -> Envelope | None:
        if self._are_beside is None:
            with self._app.producer_or_acquire() as producer:
                self._are_beside = is_beside(producer.channel, self._ledger)
        own = [spec.args, spec.kwargs]
        if not self._are_beside or spec.task is None or spec.mask or has_references(own):
            return None
        try:
            task: Any = self._app.tasks.get(spec.task)
            if task is not None and task.typing:
                task.__header__(*spec.args, **spec.kwargs)  # refuses arguments that do not fit
            shape = self._shape(spec, spec.task)
            return shape.envelope(spec, self._signer) if shape else None
        except UNAVAILABLE:
            raise
        except Exception as error:  # noqa: BLE001 - the outbox finds the same, and ends the run with it
            log.info("message not prebuilt", job=spec.name, error=str(error))
            return None

    def _shape(self, spec: JobSpec, task: str) -> Shape | None:
        key = (
            task,
            spec.routed_queue,
            spec.priority,
            spec.soft_time_limit,
            spec.time_limit,
            spec.max_retries,
            spec.retry_backoff,
            spec.retry_backoff_max,
        )
        if key not in self._shapes:
            self._shapes[key] = self._made(spec, task) if is_ordinary(self._app, task) else None
        return self._shapes[key]

    def _made(self, spec: JobSpec, task: str) -> Shape | None:
        run = Run(RUN, spec.name, RunState.QUEUED, NOMINAL, NOMINAL, rules=spec.rules())
        with self._app.producer_or_acquire() as producer:
            push = recorded(self._app, producer.channel, self._send, of_job(run, spec, task))
        if push is None:
            return None
        message = without_trace(json.loads(push.text))
        if message["content-type"] != "application/json" or message["headers"].get("expires"):
            return None
        _, _, embed = json.loads(b64decode(message["body"]))
        shape = Shape(
            queue=push.queue,
            key=push.key,
            text=with_placeholders(message),
            delivery_tag=message["properties"]["delivery_tag"],
            embed=embed,
            levels=self._app.conf.get("task_repr_maxlevels", 3),  # since Celery 5.7
            length=self._app.amqp.argsrepr_maxsize,
        )
        return shape if shape.envelope(spec, self._signer).text == dumps(message) else None
