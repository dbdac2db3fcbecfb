"""The content of messages: what a run's message says, and content that runs no code.

A worker sends digests of the message with `begin`, and the ledger compares them with its own
(job/content.py).

Messages of runs are JSON, plain or signed by Celery; other messages are the app's own business. A
pickle runs code while it is read: what can write to the broker can run anything in a worker that
accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from celery import Celery
from kombu.utils.json import JSONEncoder, dumps, loads

from supervisor.guard.delivery import HEADER, RETRIES
from supervisor.job.content import ANY, Content, digest_of
from supervisor.job.run import StepId

#: Writes JSON as kombu does, which makes one of these for each text.
ENCODER = JSONEncoder()


def content_of(run_id: str, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Content:
    """The digests of the message of a run, as it was read."""
    encode = ENCODER.encode
    step, item = StepId.of(run_id), ""
    if args and step is not None and step.item is not None:
        value, rest = encode(args[0]), digest_of(encode(list(args[1:])))
        item = ANY if ANY in (rest, digest_of(value)) else digest_of(value + rest)
    return Content(task, digest_of(encode(list(args))), digest_of(encode(kwargs)), item)


class RunProducer:
    """Stands before kombu's producer while the message of a run is made.

    1. It notes what the message is to say that the app's own code has changed: signals and the
       classes of tasks may do that before it is sent. note: is given that, as a line of
       job/content.py. named: which arguments have references to secrets.
    2. It gives the message the headers that the run's first one had from the app's own code, and
       not those of the process that happens to send it.
    """

    def __init__(
        self,
        producer: Any,
        says: tuple[str, Sequence[Any], Mapping[str, Any]],
        named: str,
        note: Callable[[str], None],
        headers: Mapping[str, Any],
    ) -> None:
        self._producer = producer
        self._expected = ENCODER.encode(says)  # that code may change them in place
        self._named = named
        self._note = note
        self._headers = headers
        #: False if the app's own code has sent nothing, or will do so later.
        self.has_sent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *more: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        if HEADER in headers:
            self.has_sent = True
            args, kwargs, _ = body
            if ENCODER.encode((headers["task"], args, kwargs)) != self._expected:
                said = content_of(headers["id"], headers["task"], args, kwargs)
                self._note(f"{said.args} {said.kwargs} {self._named or '-'} {said.task}")
            if self._headers:
                options["headers"] = {**headers, **self._headers}
        return self._producer.publish(body, *more, **options)


#: How a message is published, and not what it says; and what is found again by its queue's name.
OF_PUBLISHING = ("declare", "retry", "retry_policy")


class Captured:
    """A message as Celery gave it to kombu, for a broker that is no key beside the ledger's.

    It stands before the producer and publishes nothing but what is no run's.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.text = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *more: Any, **options: Any) -> Any:
        if HEADER not in (options.get("headers") or {}):
            return self._producer.publish(body, *more, **options)
        kept = {name: value for name, value in options.items() if name not in OF_PUBLISHING}
        kept["exchange"] = getattr(kept.get("exchange"), "name", kept.get("exchange"))
        kept["headers"] = {**kept["headers"], "expires": None}  # the ledger has it
        self.text = dumps([body, kept])
        return None


def publish_captured(app: Celery, producer: Any, text: str, queue: str, retries: int) -> None:
    """Publishes such a message, as the first of its run or a later one."""
    body, options = loads(text)
    headers = options["headers"]
    headers["retries"] = headers[HEADER][RETRIES] = retries
    producer.publish(tuple(body), declare=[app.amqp.queues[queue]], retry=False, **options)


#: Names and content types; `auth` is Celery's own envelope of signed content.
OF_RUNS = frozenset({"json", "application/json", "auth", "application/data"})

SETTINGS = (
    "accept_content",
    "result_accept_content",
    "task_serializer",
    "result_serializer",
    "event_serializer",
)


def serializer_of_runs(app: Celery, task: Any) -> str:
    """The serializer of a task's runs: the task's own if runs may have it, else JSON."""
    own = getattr(task, "serializer", None) or app.conf.task_serializer
    return str(own) if own in OF_RUNS else "json"


def besides_json(app: Celery) -> list[str]:
    """Settings and tasks with which an app sends or takes anything else, in words."""
    conf = app.conf
    return [
        *(f"{name}={value!r}" for name in SETTINGS for value in others(conf.get(name))),
        *(
            f"{name} has serializer={value!r}"
            for name, task in sorted(app.tasks.items())
            for value in others(task.serializer)
            if value != conf.task_serializer
        ),
    ]


def others(given: str | Iterable[str] | None) -> Iterator[str]:
    names = [given] if isinstance(given, str) else given or ()
    return (name for name in names if name not in OF_RUNS)
