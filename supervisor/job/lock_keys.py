"""The key of the lock that a run needs: the job's name, or a template filled from the arguments.

``key: "import:{feed_url}"`` gives every feed a lock of its own; ``key: reports`` makes all jobs
that name it share one. A placeholder is the name of a keyword argument, the position of another
(``{0}``), or one of these: ``{job}``, ``{task}``, ``{arguments}`` (a digest of all of them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from string import Formatter
from typing import Any

from supervisor.errors import InvalidKey, did_you_mean

#: A serial queue's own lock; no other key begins like it.
SERIAL_LOCK = "queue/"

#: What stands for the lock of a step, which has none of its own; likewise.
STEP_LOCK = "step/"

#: Longer keys are cut and end with a digest of the whole.
LONGEST = 200


def placeholders(template: str) -> list[str]:
    """The names and positions in the template. Raises InvalidKey."""
    try:
        parts = [part for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise InvalidKey(f"{template!r} is not a template: {error}") from error
    for _, name, options, conversion in parts:
        if options or conversion or not (str(name).isidentifier() or str(name).isdecimal()):
            raise InvalidKey(f"{{{name}}} is neither a name nor a position")
    return [str(name) for _, name, _, _ in parts]


def lock_key(
    template: str,
    *,
    job: str,
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The template filled in. Raises InvalidKey when it names an argument that is not there."""
    given = {str(position): value for position, value in enumerate(args)} | dict(kwargs or {})
    own = {"job": job, "task": task, "arguments": digest([list(args), dict(kwargs or {})])}
    known = {**own, **given}
    key = ""
    for literal, name, _, _ in parsed(template):
        key += literal
        if name is not None:
            if name not in known:
                hint = did_you_mean(name, known) or f" (there are {', '.join(sorted(known))})"
                raise InvalidKey(f"no argument {name!r}{hint}")
            key += as_text(known[name])
    return checked_key(key)


def checked_key(key: str) -> str:
    """A key that was given as such, or made of a template. Raises InvalidKey."""
    if not key.strip():
        raise InvalidKey("the key is empty")
    for prefix, whose in ((SERIAL_LOCK, "serial queues"), (STEP_LOCK, "steps")):
        if key.startswith(prefix):
            raise InvalidKey(f"a key cannot begin with {prefix!r}, as {whose} do")
    if len(key) <= LONGEST:
        return key
    return f"{key[: LONGEST - 33]}:{sha256(key.encode()).hexdigest()[:32]}"


def parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    placeholders(template)
    return list(Formatter().parse(template))


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
