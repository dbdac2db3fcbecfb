"""What the message of a run has to say: digests of its task and arguments, as the ledger has them.

`begin` compares them with those of the message (ledger/begin.lua). A message that differs starts
nothing: it was made by code of another version, or changed on its way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from supervisor.job.secrets import has_references
from supervisor.job.spec import JobSpec

#: kombu's mark of a date, a UUID and the like, which it may write differently from how it was read.
#: Arguments with it are not compared.
KOMBUS_MARK = '"__type__"'
ANY = "*"


@dataclass(frozen=True, slots=True)
class Content:
    """The digests of a message."""

    task: str
    args: str
    kwargs: str
    item: str = ""
    """Of an item of a batch and the arguments behind it."""


def digest_of(text: str) -> str:
    """text: JSON as Python's `json` writes it."""
    return ANY if KOMBUS_MARK in text else sha1(text.encode()).hexdigest()


def content_line(task: str, args: Sequence[Any], kwargs: Mapping[str, Any], named: str) -> str:
    """The same as the ledger has it. named: which have references to secrets: args, kwargs."""
    digests = digest_of(json.dumps(list(args))), digest_of(json.dumps(dict(kwargs)))
    return f"{digests[0]} {digests[1]} {named or '-'} {task}"


def content_of_job(spec: JobSpec) -> str:
    """Of a job of one task; empty for one of several steps."""
    if spec.task is None:
        return ""
    named = [name for name in ("args", "kwargs") if has_references(getattr(spec, name))]
    # As they are read back: code may have given a date, or a float that JSON does not have.
    written = json.loads(spec.model_dump_json(include={"args", "kwargs"}))
    return content_line(spec.task, written["args"], written["kwargs"], ",".join(named))
