"""The content of messages of runs, which are JSON, plain or signed by Celery.

A worker sends digests of the message with `begin`, and the ledger compares them with its own
(job/content.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from kombu.utils.json import JSONEncoder, dumps, loads

from supervisor.job.content import ANY, Content, digest_of
from supervisor.job.run_ids import StepId

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


#: Names and content types; `auth` is Celery's own envelope of signed content.
OF_RUNS = frozenset({"json", "application/json", "auth", "application/data"})


def serializer_of_runs(app: Celery, task: Any) -> str:
    """The serializer of a task's runs: the task's own if runs may have it, else JSON."""
    own = getattr(task, "serializer", None) or app.conf.task_serializer
    return str(own) if own in OF_RUNS else "json"


def as_json(value: Any) -> Any:
    """The value in plain JSON, with kombu's marks for times, UUIDs and decimals.

    The reader of the message gets them back as what they were.
    """
    return json.loads(dumps(value))


def from_json(value: Any) -> Any:
    """What `as_json` was given: not every broker's messages are JSON to their last header."""
    return loads(json.dumps(value))
