"""What keeps messages safe: the signature of a run's message, and content that runs no code.

The signature says that a message was made from what the ledger has of its run: a program that can
write to a queue need not be able to write to the ledger. Signed with a key in the ledger are its
task, its arguments, which of them name secrets, and the rules that its worker follows. A worker
that finds another signature, or none, compares the message with the ledger itself, which takes some
round trips: after the key was lost, or for a message of another version. A message that differs
from the ledger starts nothing, and the run waits for its own.

Messages of runs are JSON, plain or signed by Celery; other messages are the app's own business. A
pickle runs code while it is read: what can write to the broker can run anything in a worker that
accepts it.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from celery import Celery
from kombu.utils.json import JSONEncoder, dumps, loads

from supervisor.guard.delivery import HEADER
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.times import clock

SIGNATURE = "signature"

#: What differs between runs of a job, and is signed beside the content.
OF_A_RUN = ("run", "nominal_at", SIGNATURE)

FIELD = "signing_key"

#: Writes JSON as kombu does, which makes one of these for each text.
ENCODER = JSONEncoder()

#: After this a process reads the key again, which the ledger may have lost.
KEPT_SECONDS = 60


def content_of(task: str, args: Any, kwargs: Any, header: Mapping[str, Any]) -> str:
    """A digest of the message of a run, without what says which run it is."""
    # As a worker will read it: kombu may write a time with Z, or a key that occurs twice.
    task, args, kwargs = loads(dumps([task, args, kwargs]))
    return content_as_read(task, args, kwargs, header)


def content_as_read(task: str, args: Any, kwargs: Any, header: Mapping[str, Any]) -> str:
    """The same for a message that was read: writing and reading it again would change nothing."""
    return digest_of(ENCODER.encode([task, args, kwargs]) + text_of(header))


def digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def signed_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the header that is signed as content."""
    return {name: value for name, value in header.items() if name not in OF_A_RUN}


#: For each job: its last header with a mark for the lock, and the text before and after the mark.
_texts: dict[Any, tuple[dict[str, Any], list[str]]] = {}
MARK = "\0lock\0"
MOST_TEXTS = 100


def text_of(header: Mapping[str, Any]) -> str:
    """What is signed of the header, as JSON with sorted keys.

    Sorting and writing it takes a worker longer than the rest of a signature, and the headers of a
    job's messages hardly differ except in the lock. Headers that differ only in how a number is
    written count as equal here, and have the text of the first.
    """
    rest = signed_of(header)
    job, rules = rest.get("job"), rest.get("rules")
    if not (isinstance(job, str) and isinstance(rules, dict) and "lock" in rules):
        return json.dumps(rest, sort_keys=True)
    marked = {**rest, "rules": {**rules, "lock": MARK}}
    known = _texts.get(job)
    if known is None or known[0] != marked:
        parts = json.dumps(marked, sort_keys=True).split(json.dumps(MARK))
        if len(parts) != 2:
            return json.dumps(rest, sort_keys=True)
        if len(_texts) >= MOST_TEXTS:
            _texts.clear()
        known = _texts[job] = marked, parts
    return json.dumps(rules["lock"]).join(known[1])


class Signer:
    """One for each process. The key is read from the ledger when first needed, and made if missing.

    A ledger that lost it gets the key of the first process to look, which all then use.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._server_key = keys.server
        self._key = ""
        self._read_at = 0.0

    def read_key(self) -> bytes:
        """The key as it is kept here, or else read from the ledger. Raises RedisError."""
        if not self._key or clock() - self._read_at >= KEPT_SECONDS:
            found = self._client.hget(self._server_key, FIELD)
            if not found:
                self._client.hsetnx(self._server_key, FIELD, self._key or secrets.token_hex(32))
                found = self._client.hget(self._server_key, FIELD)
            self._key, self._read_at = str(found), clock()
        return self._key.encode()

    def signature(self, run_id: str, nominal_at: str, content: str) -> str:
        text = f"{run_id} {nominal_at} {content}"
        return hmac.digest(self.read_key(), text.encode("utf-8", "surrogatepass"), "sha256").hex()

    def signature_of(self, task: str, args: Any, kwargs: Any, header: Mapping[str, Any]) -> str:
        content = content_of(task, args, kwargs, header)
        return self.signature(header["run"], header["nominal_at"], content)

    def has_signed(self, task: str, args: Any, kwargs: Any, header: Mapping[str, Any]) -> bool:
        """Whether a message, as it was read, has this ledger's signature."""
        given = str(header.get(SIGNATURE)).encode("utf-8", "surrogatepass")
        content = content_as_read(task, args, kwargs, header)
        own = self.signature(header["run"], header["nominal_at"], content)
        return hmac.compare_digest(given, own.encode())


class SigningProducer:
    """Signs what is really sent: signals and the classes of tasks may change it before."""

    def __init__(self, producer: Any, signer: Signer) -> None:
        self._producer = producer
        self._signer = signer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *more: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        header = headers.get(HEADER)
        if header is not None:
            args, kwargs, _ = body
            signature = self._signer.signature_of(headers["task"], args, kwargs, header)
            options["headers"] = {**headers, HEADER: {**header, SIGNATURE: signature}}
        return self._producer.publish(body, *more, **options)


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
