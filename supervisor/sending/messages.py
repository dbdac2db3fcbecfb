"""What the message of a queued run says, and messages that are prebuilt.

An assignment is what a message says, from its job's spec or from the plan of its steps.

Messages of ticks differ in their run alone, and are made without Celery for each. Where the
broker's queues are keys beside the ledger's, the function that admits a run also sends its message
(ledger/admit.lua), and needs the text of the message for that. To RabbitMQ, and to a Redis that is
not the ledger's, they are sent in batches once their runs are queued (sending/batches.py).

Messages of calls differ in as little, and are made in the same way for a broker beside the ledger.

1. Jobs of one task, with the same queue, priority, limits and retries, have messages of one shape.
   So have calls of a guarded task with the same options. Celery and kombu make it, like any other
   message, for a run that stands for all of them.
2. For each run its id and nominal time, the name, rules and arguments of its job, and a fresh
   delivery tag are put in their places. For RabbitMQ those are in the bytes that py-amqp made.

Messages that may differ in more are not prebuilt, and their runs go through the outbox: those whose
arguments are masked or name secrets; all while a signal handler listens to messages being sent;
those of tasks and routers with code of their own for it; and those whose shape, filled with what it
was made of, differs from what Celery had made. For RabbitMQ also those that go to an exchange of
the app's, and those whose nominal time is not a whole second.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from secrets import token_hex
from typing import Any, NamedTuple

import amqp
from amqp.serialization import dumps as amqp_dumps
from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.app.task import extract_exec_options  # type: ignore[attr-defined]
from celery.utils.saferepr import saferepr
from kombu.utils.json import dumps

from supervisor.guard.delivery import HEADER, RETRIES
from supervisor.job.run import Reference, Run, RunState, StepId, tick_id
from supervisor.job.secrets import has_references
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Step, seconds
from supervisor.ledger.connection import Client
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import Message, RunRequest, Tick
from supervisor.logs import get_logger
from supervisor.sending.app_settings import broker_address, required_settings
from supervisor.sending.batches import PreparedMessage, is_amqp, is_redis
from supervisor.sending.queues import UNAVAILABLE
from supervisor.sending.signing import ENCODER, Signer, content_of, digest_of, signed_of
from supervisor.settings import same_database

#: Up to this many plans of runs are kept: they never change, and a process publishes for a few.
MOST_PLANS = 200


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the message of a run says: the run, and its task with queue, limits and retries.

    step: of the run's plan, or what a job of one task says; its arguments, where a caller gave
    others, are not these. fills_up: parameters without an argument come from params. references:
    what of the arguments a schedule file wrote, with references in it.
    """

    run: Run
    step: Step
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    fills_up: bool
    references: Sequence[Reference]


class Assignments:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plans: dict[str, Mapping[str, Step]] = {}

    def of(self, runs: Sequence[Run]) -> dict[str, Assignment]:
        """Assignments by run id, without runs whose job, or whose run of several steps, is gone.

        Jobs that only another version of this code can read are left out too.
        """
        specs = self._ledger.some_specs({run.job for run in runs if StepId.of(run.id) is None})
        step_ids = {run.id: step_id for run in runs if (step_id := StepId.of(run.id))}
        plans = self._plans_of({step_id.run for step_id in step_ids.values()})
        items = self._ledger.steps.items([run.id for run in runs])
        found: dict[str, Assignment] = {}
        for run in runs:
            step_id, spec = step_ids.get(run.id), specs.get(run.job)
            step = plans.get(step_id.run, {}).get(step_id.step) if step_id else None
            if step:
                found[run.id] = of_step(run, step, items.get(run.id, ()))
            elif spec and spec.task and not step_id:
                found[run.id] = of_job(run, spec, spec.task)
        return found

    def _plans_of(self, run_ids: Iterable[str]) -> Mapping[str, Mapping[str, Step]]:
        plans = self._plans  # another thread may replace them meanwhile
        unknown = [run_id for run_id in run_ids if run_id not in plans]
        if len(plans) + len(unknown) > MOST_PLANS:
            plans, unknown = {}, list(run_ids)
        if unknown:
            plans = self._plans = {**plans, **self._ledger.steps.plans(unknown)}
        return plans


def of_job(run: Run, spec: JobSpec, task: str) -> Assignment:
    step = Step(
        name=spec.name,
        task=task,
        priority=0,
        queue=spec.routed_queue,
        message_priority=spec.priority,
        soft_time_limit=seconds(spec.soft_time_limit),
        time_limit=seconds(spec.time_limit),
        max_retries=spec.max_retries,
        retry_backoff=spec.retry_backoff.total_seconds(),
        retry_backoff_max=spec.retry_backoff_max.total_seconds(),
        rules=run.rules,
    )
    args = tuple(spec.args if run.args is None else run.args)
    kwargs = dict(spec.kwargs if run.kwargs is None else run.kwargs)
    own = [name for name in written(run) if has_references(getattr(spec, name))]
    return Assignment(run, step, args, kwargs, False, [*own, *run.references])


def of_step(run: Run, step: Step, item: Sequence[Any]) -> Assignment:
    """item: the item of a batch that the run is for, as its first argument; else empty."""
    args = (*item, *step.args) if run.args is None else tuple(run.args)
    kwargs = dict(step.kwargs if run.kwargs is None else run.kwargs)
    own = written(run) if step.has_references else []
    return Assignment(run, step, args, kwargs, True, [*own, *run.references])


def run_of(spec: JobSpec, request: RunRequest, nominal_at: datetime) -> Run:
    """The run of a call before it is admitted. Raises InvalidKey."""
    return Run(
        request.run_id or "",
        spec.name,
        RunState.QUEUED,
        nominal_at,
        nominal_at,
        args=request.args,
        kwargs=request.kwargs,
        options=request.options,
        rules=request.rules_for(spec),
    )


def written(run: Run) -> list[str]:
    """Names of the arguments that are the job's own, not a caller's."""
    return [name for name in ("args", "kwargs") if getattr(run, name) is None]


def message_header(assignment: Assignment, queue: str) -> dict[str, Any]:
    """What a run's message says beside Celery's own headers."""
    run, step = assignment.run, assignment.step
    references = {"references": list(assignment.references)} if assignment.references else {}
    return {
        "run": run.id,
        "job": run.job,
        "queue": queue,
        "nominal_at": run.nominal_at.isoformat(),
        "rules": step.rules.json_fields,
        RETRIES: run.retries,
        "max_retries": step.max_retries,
        "retry_backoff": step.retry_backoff,
        "retry_backoff_max": step.retry_backoff_max,
        **references,
    }


# Prebuilt messages.


#: Two connections with the same of these see the same keys with the same rights.
SAME_KEYS = ("host", "port", "path", "db", "username")


def name_of(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"


#: A handler of one of these sees each message, and may change it.
LISTENED_TO = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)

#: Options with which calls may have messages of one shape, and how many such shapes are kept.
OF_CALLS = {"queue", "priority", "ignore_result"}
MOST_SHAPES = 1_000

#: What a task's class may define of how it is sent, and the classes whose definitions are known.
SENDING = ("apply_async", "shadow_name")
KNOWN_CLASSES = ("supervisor.worker.task:GuardedCalls", name_of(Task))

#: Publishes with a given producer, as everything is published.
Send = Callable[[Any, Assignment], str]


class Recorder:
    """Stands in for the client of kombu's Redis transport: keeps the commands, and sends none."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        return lambda *args, **_: self.commands.append((command, *args))

    def pipeline(self) -> AbstractContextManager[Recorder]:
        return nullcontext(self)


def recorded(app: Celery, channel: Any, send: Send, assignment: Assignment) -> Message | None:
    """What Celery and kombu would push for a run, without pushing it.

    channel: the caller's own. Returns None if that would be more than one push (a queue that
    expires, an exchange of several queues), and for other transports than Redis and RabbitMQ.
    """
    if is_amqp(channel):
        return recorded_for_amqp(app, channel, send, assignment)
    if not is_redis(channel):
        return None
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


class RecordingChannel:
    """Stands in for a channel to RabbitMQ: declares queues, and keeps what is published."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.published: list[tuple[amqp.Message, str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def basic_publish(
        self, message: amqp.Message, exchange: str, routing_key: str, **_: Any
    ) -> None:
        self.published.append((message, exchange, routing_key))


def recorded_for_amqp(
    app: Celery, channel: Any, send: Send, assignment: Assignment
) -> Message | None:
    """As `recorded`, in the form that messages have on Redis. None for an exchange of the app's."""
    recording: Any = RecordingChannel(channel)
    queue = send(app.amqp.Producer(recording, auto_declare=False), assignment)
    match recording.published:
        case [(message, "", to)] if to == queue:
            text = as_text(message)
            again = as_amqp(json.loads(text))
            is_same = properties_of(again) == properties_of(message)
            return Message(queue, "", text) if is_same else None
        case _:
            return None


#: Properties on RabbitMQ that messages on Redis have beside theirs, under another name.
OUTSIDE = {
    "application_headers": "headers",
    "content_type": "content-type",
    "content_encoding": "content-encoding",
}


def as_text(message: amqp.Message) -> str:
    body = message.body.encode() if isinstance(message.body, str) else message.body
    properties = {k: v for k, v in message.properties.items() if k not in OUTSIDE}
    outside = {OUTSIDE[k]: v for k, v in message.properties.items() if k in OUTSIDE}
    properties["delivery_tag"] = token_hex(16)  # as on Redis; RabbitMQ has its own
    return dumps({"body": b64encode(body).decode(), **outside, "properties": properties})


def properties_of(message: amqp.Message) -> bytes:
    """The properties as py-amqp writes them."""
    made: bytes = message._serialize_properties()  # type: ignore[attr-defined]
    return made


def as_amqp(message: Mapping[str, Any]) -> amqp.Message:
    properties = {k: v for k, v in message["properties"].items() if k != "delivery_tag"}
    outside = {name: message[key] for name, key in OUTSIDE.items() if key in message}
    return amqp.Message(b64decode(message["body"]), **properties, **outside)


def is_ordinary(app: Celery, name: str) -> bool:
    """Whether Celery alone decides how a task is sent, and no handler or event observes it."""
    task_class: Any = type(app.tasks.get(name))
    return (
        not sends_itself(task_class)
        and type(app).send_task is Celery.send_task
        and not is_listened_to()
        and not app.conf.task_send_sent_event
        and all(isinstance(route, MapRoute) for route in app.amqp.routes)
    )


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


def is_listened_to() -> bool:
    return any(signal.receivers for signal in LISTENED_TO)


def is_beside(channel: Any, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
    if not hasattr(channel, "priority_steps"):
        return False
    ours = connected_to(channel.client.connection_pool)
    return ours is not None and ours == connected_to(ledger.connection_pool)


def connected_to(pool: Any) -> tuple[str, ...] | None:
    """The server of a connection pool; None if the pool looks it up, as with Sentinel."""
    known = pool.connection_kwargs
    if not (known.get("host") or known.get("path")):
        return None
    return tuple(str(known.get(key) or "") for key in SAME_KEYS)


log = get_logger("supervisor.messages")

#: A nominal time that no schedule has, and its run, which stands for all.
NOMINAL = datetime(1, 1, 1, tzinfo=UTC)
NOMINAL_TEXT = NOMINAL.isoformat()
RUN = tick_id("any", NOMINAL)

#: They stand where messages of one shape differ, and occur in no job, argument or setting.
PLACEHOLDERS = {
    name: f"<{name} of {RUN}>"
    for name in ("job", "rules", "signature", "argsrepr", "kwargsrepr", "body", "header", "headers")
}
PLACEHOLDERS |= {"root": f"<root of {RUN}>", "parent": f"<parent of {RUN}>"}
PLACEHOLDERS |= {"run": RUN, "nominal": NOMINAL_TEXT}  # last: the others contain them

#: Options of a call within a task, and the placeholders of their values.
OF_A_CALL = {"root_id": PLACEHOLDERS["root"], "parent_id": PLACEHOLDERS["parent"]}

#: kombu writes text that contains this differently from how it was read.
KOMBUS_MARK = '"__type__"'


@dataclass(frozen=True, slots=True)
class Own:
    """What the message of one run has of its own. body: JSON. rules: as in JobSpec, and the lock
    between the two. reply_to: that of the calling thread; of a tick, that of its shape. root,
    parent: of a call within a task."""

    run: str
    nominal: str
    job: str
    rules: tuple[str, str, str]
    argsrepr: str
    kwargsrepr: str
    body: str
    signature: str
    reply_to: str = ""
    root: str = ""
    parent: str = ""


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """A template of messages on Redis. key: the list that they are pushed to. reply_to: of the
    message that it was made from."""

    key: str
    text: str
    reply_to: str

    @classmethod
    def of(cls, message: Mapping[str, Any], key: str) -> TextTemplate:
        text = dumps(with_placeholders(message)).replace("%", "%%")
        for name, value in PLACEHOLDERS.items():
            in_json = json.dumps(value) if name in ("job", "rules") else value
            text = text.replace(in_json, f"%({name})s")
        properties = message["properties"]
        text = text.replace(properties["delivery_tag"], "%(tag)s")
        if reply_to := properties.get("reply_to") or "":  # a UUID, like the tag
            text = text.replace(reply_to, "%(reply_to)s")
        return cls(key, text, reply_to)

    def message(self, queue: str, own: Own) -> Message:
        return Message(queue, self.key, self.filled(own, token_hex(16)))

    def filled(self, own: Own, tag: str) -> str:
        before, lock, after = own.rules
        return self.text % {
            "run": own.run,
            "nominal": own.nominal,
            "tag": tag,
            "job": quoted(own.job),
            "rules": before + quoted(lock) + after,
            "argsrepr": quoted(own.argsrepr)[1:-1],
            "kwargsrepr": quoted(own.kwargsrepr)[1:-1],
            "body": b64encode(own.body.encode()).decode(),
            "signature": own.signature,
            "reply_to": own.reply_to or self.reply_to,
            "root": quoted(own.root)[1:-1],
            "parent": quoted(own.parent)[1:-1],
        }

    def is_as_made(self, own: Own, message: Mapping[str, Any]) -> bool:
        """Whether filling it gives the same message that it was made from."""
        return self.filled(own, message["properties"]["delivery_tag"]) == dumps(message)


@dataclass(frozen=True, slots=True)
class AmqpTemplate:
    """A template of messages for RabbitMQ, as py-amqp writes them: the properties, the headers in
    them, and our header in those."""

    properties: bytes
    headers: bytes
    header: bytes

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> AmqpTemplate:
        headers = with_placeholders(message)["headers"]
        all_headers = {"all": PLACEHOLDERS["headers"]}
        properties = properties_of(as_amqp({**message, "headers": all_headers}))
        correlation_id = bytes([len(RUN)]) + RUN.encode()
        return cls(
            escaped(properties)
            .replace(escaped(table(all_headers)), b"%(headers)b")
            .replace(escaped(correlation_id), b"%(run)b"),
            with_places(items_of({**headers, HEADER: PLACEHOLDERS["header"]})),
            with_places(items_of(headers[HEADER])),
        )

    def message(self, queue: str, own: Own) -> PreparedMessage:
        return PreparedMessage(queue, own.body.encode(), self.filled(own))

    def filled(self, own: Own) -> bytes:
        run = own.run.encode()
        header = self.header % {
            b"run": long_string(own.run),
            b"nominal": long_string(own.nominal),
            b"job": long_string(own.job),
            b"rules": rules_table(own.rules),
            b"signature": long_string(own.signature),
        }
        headers = self.headers % {
            b"run": long_string(own.run),
            b"argsrepr": long_string(own.argsrepr),
            b"kwargsrepr": long_string(own.kwargsrepr),
            b"header": b"F" + sized(header),
        }
        return self.properties % {b"headers": sized(headers), b"run": bytes([len(run)]) + run}

    def is_as_made(self, own: Own, message: Mapping[str, Any]) -> bool:
        return self.filled(own) == properties_of(as_amqp(message))


def table(fields: Mapping[str, Any]) -> bytes:
    made: bytes = amqp_dumps("F", (fields,))
    return made


def items_of(fields: Mapping[str, Any]) -> bytes:
    """The items of a table, without the size before them."""
    return table(fields)[4:]


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content


def long_string(text: str) -> bytes:
    return b"S" + sized(text.encode())


def escaped(made: bytes) -> bytes:
    """For a format string: a length may be the byte of a percent sign."""
    return made.replace(b"%", b"%%")


def with_places(made: bytes) -> bytes:
    made = escaped(made)
    for name, value in PLACEHOLDERS.items():
        made = made.replace(escaped(long_string(value)), f"%({name})b".encode())
    return made


def rules_table(rules: tuple[str, str, str]) -> bytes:
    before, lock, after = rules
    return b"F" + sized(_rules_around_lock(before, after) % long_string(lock))


@lru_cache(maxsize=1_000)
def _rules_around_lock(before: str, after: str) -> bytes:
    made = items_of(json.loads(f"{before}{json.dumps(RUN)}{after}"))
    return escaped(made).replace(escaped(long_string(RUN)), b"%b")


class OfShape(NamedTuple):
    """A run whose message is made by its shape. nominal: ISO text. The others: as in `Own`."""

    id: str
    nominal: str
    job: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    rules: tuple[str, str, str]
    reply_to: str = ""
    root: str = ""
    parent: str = ""


def of_tick(tick: Tick) -> OfShape:
    spec = tick.spec
    before, after = spec.rules_around_lock
    rules = (before, spec.lock, after)
    return OfShape(
        tick.run_id, tick.nominal_at.isoformat(), spec.name, spec.args, spec.kwargs, rules
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """What messages have in common that differ only in `Own`.

    signed: the signed part of the header, as JSON with places for the job's name and rules. embed:
    what the body has beside the arguments, as JSON. levels, length: bounds of their `repr`.
    """

    queue: str
    task: str
    signed: str
    embed: str
    levels: int
    length: int
    template: TextTemplate | AmqpTemplate

    def message(self, run: OfShape, signer: Signer) -> Message | PreparedMessage:
        return self.template.message(self.queue, self.own(run, signer))

    def own(self, run: OfShape, signer: Signer) -> Own:
        args, kwargs = encoded(run.args), ENCODER.encode(run.kwargs) if run.kwargs else "{}"
        before, lock, after = run.rules
        rules = before + quoted(lock) + after
        signed = self.signed % {"job": quoted(run.job), "rules": rules}
        if KOMBUS_MARK in args or KOMBUS_MARK in kwargs:
            content = content_of(self.task, run.args, run.kwargs, json.loads(signed))
        else:
            content = digest_of(f"[{quoted(self.task)}, {args}, {kwargs}]{signed}")
        return Own(
            run=run.id,
            nominal=run.nominal,
            job=run.job,
            rules=run.rules,
            argsrepr=shown_args(run.args, self.length, self.levels),
            kwargsrepr=shown_kwargs(run.kwargs, self.length, self.levels),
            body=f"[{args}, {kwargs}, {self.embed}]",
            signature=signer.signature(run.id, run.nominal, content),
            reply_to=run.reply_to,
            root=run.root,
            parent=run.parent,
        )


def encoded(args: tuple[Any, ...]) -> str:
    """As kombu writes them, which takes longer where the arguments are plain."""
    parts = [in_json(arg) for arg in args]
    return f"[{', '.join(parts)}]" if "" not in parts else ENCODER.encode(args)


def in_json(value: Any) -> str:
    """A text or a whole number as JSON; empty for any other value."""
    if type(value) is str:
        return quoted(value)
    return str(value) if type(value) is int else ""


def shown_args(args: tuple[Any, ...], length: int, levels: int) -> str:
    """As Celery's `saferepr` shows them, which alone takes longer than the rest of a message."""
    parts = [brief(arg) for arg in args]
    text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return text if "" not in parts and len(text) < length else saferepr(args, length, levels)


def shown_kwargs(kwargs: Mapping[str, Any], length: int, levels: int) -> str:
    """The same for arguments by name."""
    parts = [brief(part) for item in kwargs.items() for part in item]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    text = "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"
    return text if "" not in parts and len(text) < length else saferepr(kwargs, length, levels)


def brief(value: Any) -> str:
    """What `saferepr` shows for a plain value; empty for any other."""
    if type(value) is str:
        return "'" + value.replace("'", "\\'") + "'"
    return str(value) if value is None or type(value) in (int, float, bool) else ""


def with_placeholders(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with a placeholder for each value that is a job's or a run's own."""
    headers = message["headers"]
    own = {name: PLACEHOLDERS[name] for name in ("job", "rules", "signature")}
    reprs = {name: PLACEHOLDERS[name] for name in ("argsrepr", "kwargsrepr")}
    headers = {**headers, **reprs, HEADER: {**headers[HEADER], **own}}
    return {**message, "body": PLACEHOLDERS["body"], "headers": headers}


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


class PrebuiltMessages:
    """Makes the messages of ticks. send: publishes with a given producer, like any message."""

    def __init__(self, app: Celery, ledger: Client, send: Send, signer: Signer) -> None:
        self._app = app
        self._ledger = ledger
        self._send = send
        self._signer = signer
        self._shapes: dict[tuple[Any, ...], Shape | None] = {}
        self._of_calls: dict[tuple[str, str, str], tuple[JobSpec, Shape | None]] = {}
        # A broker that is elsewhere, and may be unavailable, is not asked while runs are admitted.
        may_be_beside = same_database(broker_address(app.conf), required_settings(app).redis_url)
        self._are_beside: bool | None = None if may_be_beside else False

    def filled(self, tick: Tick) -> Tick:
        """The tick with its message, for the function that queues its run to send.

        Without a message if that function cannot send it, or if it cannot be prebuilt.
        """
        if is_listened_to() or not self._has_queues_beside():
            return tick
        message = self._message(tick)
        return tick.sent_as(message) if isinstance(message, Message) else tick

    def messages(
        self, ticks: Iterable[Tick], channel: Any
    ) -> dict[str, Message] | dict[str, PreparedMessage]:
        """The messages for a broker elsewhere, by run id, as far as they can be prebuilt.

        channel: to the broker, which is available.
        """
        found: dict[str, Any] = {}
        for tick in ticks:
            if message := self._message(tick, channel):
                found[tick.run_id] = message
        return found

    def call(self, spec: JobSpec, task: str, request: RunRequest, channel: Any) -> Message | None:
        """The message of a call to a broker beside the ledger; None if Celery has to make it.

        request: with an id, arguments and kwargs. channel: as in `recorded`. Raises InvalidKey.
        """
        own_task = self._app.tasks.get(task)
        options = {k: v for k, v in request.options.items() if k not in OF_A_CALL}
        if own_task is None or spec.mask or request.changes or not options.keys() <= OF_CALLS:
            return None
        if not is_sent_by_celery_alone(self._app):
            return None
        lineage = {k: type(v) for k, v in request.options.items() if k in OF_A_CALL}
        key = (spec.name, repr((options, lineage)), repr(extract_exec_options(own_task)))
        known = self._of_calls.get(key)
        if known is None or known[0] is not spec:
            if len(self._of_calls) >= MOST_SHAPES:
                self._of_calls.clear()
            known = self._of_calls[key] = spec, self._of_call(spec, task, request, channel)
        if known[1] is None:
            return None
        now = datetime.now(UTC).isoformat()
        message = known[1].message(self._content(spec, request, now), self._signer)
        return message if isinstance(message, Message) else None

    def _of_call(self, spec: JobSpec, task: str, request: RunRequest, channel: Any) -> Shape | None:
        if any(type(request.options.get(name, "")) is not str for name in OF_A_CALL):
            return None
        names = {k: OF_A_CALL.get(k, v) for k, v in request.options.items()}
        request = replace(request, run_id=RUN, options=names)
        push = recorded(
            self._app, channel, self._send, of_job(run_of(spec, request, NOMINAL), spec, task)
        )
        if push is None or not push.key:
            return None
        try:
            return self._made(
                push, json.loads(push.text), self._content(spec, request, NOMINAL_TEXT)
            )
        except (KeyError, TypeError, ValueError):  # of Celery's older protocol, or compressed
            return None

    def _content(self, spec: JobSpec, request: RunRequest, nominal: str) -> OfShape:
        before, after = spec.rules_around_lock
        return OfShape(
            request.run_id or "",
            nominal,
            spec.name,
            tuple(request.args or ()),
            request.kwargs or {},
            (before, request.lock_for(spec), after),
            self._app.thread_oid,
            str(request.options.get("root_id", "")),
            str(request.options.get("parent_id", "")),
        )

    def _has_queues_beside(self) -> bool:
        if self._are_beside is None:
            with self._app.producer_or_acquire() as producer:
                self._are_beside = is_beside(producer.channel, self._ledger)
        return self._are_beside

    def _message(self, tick: Tick, channel: Any = None) -> Message | PreparedMessage | None:
        spec = tick.spec
        if spec.task is None or spec.mask or has_references((spec.args, spec.kwargs)):
            return None
        try:
            task: Any = self._app.tasks.get(spec.task)
            if task is not None and task.typing:
                task.__header__(*spec.args, **spec.kwargs)  # refuses arguments that do not fit
            shape = self._shape(spec, spec.task, channel)
            return shape.message(of_tick(tick), self._signer) if shape else None
        except UNAVAILABLE:
            raise
        except Exception as error:  # noqa: BLE001 - the outbox finds the same, and ends the run with it
            log.info("message not prebuilt", job=spec.name, error=str(error))
            return None

    def _shape(self, spec: JobSpec, task: str, channel: Any) -> Shape | None:
        key = (
            task,
            spec.routed_queue,
            spec.priority,
            spec.soft_time_limit,
            spec.time_limit,
            spec.max_retries,
            spec.retry_backoff,
            spec.retry_backoff_max,
            spec.start_deadline,
        )
        if key not in self._shapes:
            is_ours = is_ordinary(self._app, task)
            self._shapes[key] = self._of_ticks(spec, task, channel) if is_ours else None
        return self._shapes[key]

    def _of_ticks(self, spec: JobSpec, task: str, channel: Any) -> Shape | None:
        run = Run(RUN, spec.name, RunState.QUEUED, NOMINAL, NOMINAL, rules=spec.rules())
        push = self._recorded(of_job(run, spec, task), channel)
        if push is None:
            return None
        own = of_tick(Tick(spec, NOMINAL, run_id=RUN))
        return self._made(push, without_trace(json.loads(push.text)), own)

    def _made(self, push: Message, message: dict[str, Any], of: OfShape) -> Shape | None:
        """push: the message that Celery made. of: what its run has of its own."""
        headers = message["headers"]
        if message["content-type"] != "application/json" or headers.get("expires"):
            return None
        _, _, embed = json.loads(b64decode(message["body"]))
        header = signed_of(with_placeholders(message)["headers"][HEADER])
        signed = json.dumps(header, sort_keys=True).replace("%", "%%")
        for name in ("job", "rules"):
            signed = signed.replace(json.dumps(PLACEHOLDERS[name]), f"%({name})s")
        shape = Shape(
            queue=push.queue,
            task=headers["task"],
            signed=signed,
            embed=dumps(embed),
            levels=self._app.conf.get("task_repr_maxlevels", 3),  # since Celery 5.7
            length=self._app.amqp.argsrepr_maxsize,
            template=(TextTemplate.of(message, push.key) if push.key else AmqpTemplate.of(message)),
        )
        own = shape.own(of, self._signer)
        return shape if shape.template.is_as_made(own, message) else None

    def _recorded(self, assignment: Assignment, channel: Any) -> Message | None:
        if channel is not None:
            return recorded(self._app, channel, self._send, assignment)
        with self._app.producer_or_acquire() as producer:
            return recorded(self._app, producer.channel, self._send, assignment)
