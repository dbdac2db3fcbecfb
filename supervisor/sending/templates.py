"""Templates of messages: one that Celery and kombu made, with places for what a run has of its own.

What they would push to Redis is recorded instead of pushed. A template is only used if filling it
with what it was made from gives the same.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from secrets import token_hex
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.saferepr import saferepr
from kombu.utils.json import dumps

from supervisor.guard.delivery import HEADER
from supervisor.job.run import tick_id
from supervisor.ledger.requests import Message, Tick
from supervisor.sending.content import ENCODER
from supervisor.sending.queues import is_on_redis

#: Publishes one message with a given producer. Returns the name of its queue.
Publish = Callable[[Any], str]


class Recorder:
    """Stands in for the client of kombu's Redis transport: keeps the commands, and sends none."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        return lambda *args, **_: self.commands.append((command, *args))

    def pipeline(self) -> AbstractContextManager[Recorder]:
        return nullcontext(self)


def recorded(app: Celery, channel: Any, publish: Publish) -> Message | None:
    """What Celery and kombu would push, without pushing it.

    channel: the caller's own. Returns None if that would be more than one push (a queue that
    expires, an exchange of several queues), and for other transports than Redis.
    """
    if not is_on_redis(channel):
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
        queue = publish(app.amqp.Producer(channel, auto_declare=False))
    finally:
        del channel._put, channel._put_fanout
    match recorder.commands:
        case [("lpush", key, text)]:
            return Message(queue, channel.global_keyprefix + key, text)
        case _:
            return None


#: A nominal time that no schedule has, and its run, which stands for all.
NOMINAL = datetime(1, 1, 1, tzinfo=UTC)
NOMINAL_TEXT = NOMINAL.isoformat()
RUN = tick_id("any", NOMINAL)

#: They stand where messages of one shape differ, and occur in no job, argument or setting.
PLACEHOLDERS = {
    name: f"<{name} of {RUN}>"
    for name in ("job", "rules", "argsrepr", "kwargsrepr", "body", "header", "headers")
}
PLACEHOLDERS |= {"root": f"<root of {RUN}>", "parent": f"<parent of {RUN}>"}
PLACEHOLDERS |= {"run": RUN, "nominal": NOMINAL_TEXT}  # last: the others contain them

#: Options of a call within a task, and the placeholders of their values.
OF_A_CALL = {"root_id": PLACEHOLDERS["root"], "parent_id": PLACEHOLDERS["parent"]}


class OfShape(NamedTuple):
    """A run whose message is made by its shape. nominal: ISO text. rules: as in JobSpec, and the
    lock between the two. reply_to: that of the calling thread; of a tick, that of its shape. root,
    parent: of a call within a task."""

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
class Own:
    """What the message of one run has of its own. body: JSON."""

    run: OfShape
    argsrepr: str
    kwargsrepr: str
    body: str


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
        run = own.run
        before, lock, after = run.rules
        return self.text % {
            "run": run.id,
            "nominal": run.nominal,
            "tag": tag,
            "job": quoted(run.job),
            "rules": before + quoted(lock) + after,
            "argsrepr": quoted(own.argsrepr)[1:-1],
            "kwargsrepr": quoted(own.kwargsrepr)[1:-1],
            "body": b64encode(own.body.encode()).decode(),
            "reply_to": run.reply_to or self.reply_to,
            "root": quoted(run.root)[1:-1],
            "parent": quoted(run.parent)[1:-1],
        }

    def is_as_made(self, own: Own, message: Mapping[str, Any]) -> bool:
        """Whether filling it gives the same message that it was made from."""
        return self.filled(own, message["properties"]["delivery_tag"]) == dumps(message)


@dataclass(frozen=True, slots=True)
class Shape:
    """What messages have in common that differ only in `Own`.

    embed: what the body has beside the arguments, as JSON. levels, length: bounds of their `repr`.
    """

    queue: str
    embed: str
    levels: int
    length: int
    template: TextTemplate

    def message(self, run: OfShape) -> Message:
        return self.template.message(self.queue, self.own(run))

    def own(self, run: OfShape) -> Own:
        args, kwargs = encoded(run.args), ENCODER.encode(run.kwargs) if run.kwargs else "{}"
        return Own(
            run,
            argsrepr=shown_args(run.args, self.length, self.levels),
            kwargsrepr=shown_kwargs(run.kwargs, self.length, self.levels),
            body=f"[{args}, {kwargs}, {self.embed}]",
        )


def shape_of(app: Celery, push: Message, message: dict[str, Any], run: OfShape) -> Shape | None:
    """The shape of a message that Celery made for a run; None if it has none.

    push: as it was recorded. message: what it says. Raises KeyError, TypeError or ValueError for
    messages of Celery's older protocol, and compressed ones.
    """
    headers = message["headers"]
    if message["content-type"] != "application/json" or headers.get("expires"):
        return None
    _, _, embed = json.loads(b64decode(message["body"]))
    shape = Shape(
        queue=push.queue,
        embed=dumps(embed),
        levels=app.conf.get("task_repr_maxlevels", 3),  # since Celery 5.7
        length=app.amqp.argsrepr_maxsize,
        template=TextTemplate.of(message, push.key),
    )
    return shape if shape.template.is_as_made(shape.own(run), message) else None


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
    own = {name: PLACEHOLDERS[name] for name in ("job", "rules")}
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
