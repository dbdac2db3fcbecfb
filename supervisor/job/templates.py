"""The templates of a job: `key`, the lock that a run needs, and `log_url`, where its lines are.

``key: "import:{feed_url}"`` gives every feed a lock of its own; ``key: reports`` makes all jobs
that name it share one. A placeholder is the name of a keyword argument, the position of another
(``{0}``), or one of these: ``{job}``, ``{task}``, ``{arguments}`` (a digest of all of them).

``log_url: "https://logs.example/?q={run}&from={started_ms}&to={ended_ms}"`` is the address of a
run's lines in the team's own log store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

from supervisor.errors import InvalidKey, did_you_mean
from supervisor.job.reports import log_place
from supervisor.job.run import Run
from supervisor.job.secrets import Mask, masked
from supervisor.times import render_milliseconds

#: A serial queue's own lock; no other key begins like it.
SERIAL_LOCK = "queue/"

#: What stands for the lock of a step, which has none of its own; likewise.
STEP_LOCK = "step/"

#: Longer keys are cut and end with a digest of the whole.
LONGEST_KEY = 200


@lru_cache(maxsize=1_000)
def parts_of(template: str) -> Sequence[tuple[str, str | None]]:
    """The texts of the template of a key, each with the name or position that follows it.

    Raises InvalidKey.
    """
    try:
        parts = [*Formatter().parse(template)]
    except ValueError as error:
        raise InvalidKey(f"{template!r} is not a template: {error}") from error
    for _, name, options, conversion in parts:
        if name is None:
            continue
        if options or conversion or not (name.isidentifier() or name.isdecimal()):
            raise InvalidKey(f"{{{name}}} is neither a name nor a position")
    return [(text, name) for text, name, _, _ in parts]


def placeholders(template: str) -> list[str]:
    """The names and positions in the template of a key. Raises InvalidKey."""
    return [name for _, name in parts_of(template) if name is not None]


def lock_key(
    template: str,
    *,
    job: str,
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    mask: Mask = False,
) -> str:
    """The template filled in. Raises InvalidKey when it names an argument that is missing.

    An argument of which `mask` hides anything is shown as a digest.
    """
    kwargs, names = dict(kwargs or {}), placeholders(template)
    digest = digest_of(args, kwargs) if "arguments" in names else ""
    own = {"job": job, "task": task, "arguments": digest}
    given = {**{str(position): value for position, value in enumerate(args)}, **kwargs}
    values = own | {name: visible(name, given[name], mask) for name in names if name in given}
    for name in names:
        if name not in values:
            there = {*own, *given}
            hint = did_you_mean(name, there) or f" (there are {', '.join(sorted(there))})"
            by_name = " that is passed by name" if args and not name.isdecimal() else ""
            raise InvalidKey(f"no argument {name!r}{by_name}{hint}")
    filled = (text + ("" if name is None else values[name]) for text, name in parts_of(template))
    return checked_key("".join(filled))


def visible(name: str, argument: Any, mask: Mask) -> str:
    """The argument as text, or a digest of it if the text would show what `mask` hides."""
    if not mask:
        return as_text(argument)
    whole = {name: argument}
    hides = as_text(masked(mask, whole)) != as_text(whole)
    return digest_of((), whole) if hides else as_text(argument)


def digest_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    text = json.dumps([list(args), kwargs], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:16]


def checked_key(key: str) -> str:
    """A key that was given as such, or made from a template. Raises InvalidKey."""
    if not key.strip():
        raise InvalidKey("the key is empty")
    for prefix, whose in ((SERIAL_LOCK, "serial queues"), (STEP_LOCK, "steps")):
        if key.startswith(prefix):
            raise InvalidKey(f"a key cannot begin with {prefix!r}, as {whose} do")
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[: LONGEST_KEY - 33]}:{sha256(key.encode()).hexdigest()[:32]}"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


#: The times of a link are this much wider than the run: clocks differ, and lines come late.
MARGIN = timedelta(seconds=10)

LOG_PLACEHOLDERS = (
    *("job", "run", "task_id", "step", "attempt", "worker", "queue"),
    *("started_at", "ended_at", "started_ms", "ended_ms"),
)

#: Characters: a query of Grafana's or Kibana's is long.
LONGEST_LOG_URL = 4_000


def checked_log_url(template: str) -> str:
    """Raises ValueError, with the hint of `did_you_mean`."""
    try:
        parts = [part for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"{error}: write {{ as %7B and }} as %7D") from error
    for _, name, options, conversion in parts:
        if name not in LOG_PLACEHOLDERS or options or conversion:
            choices = f" (there are {', '.join(LOG_PLACEHOLDERS)})"
            hint = did_you_mean(str(name), LOG_PLACEHOLDERS) or choices
            raise ValueError(f"unknown placeholder {{{name}}}{hint}")
    if not is_link(template):
        raise ValueError("not an http or https address such as https://logs.example/?q={run}")
    return template


def is_link(template: str) -> bool:
    """Whether it leads to a host of its own, whatever its placeholders become."""
    filled = template.format_map(dict.fromkeys(LOG_PLACEHOLDERS, "1"))
    try:
        parts = urlsplit(template)
        has_host = bool(parts.hostname) and parts.port != 0 and not {*"{}"} & {*parts.netloc}
    except ValueError:
        return False
    is_plain = filled.isascii() and filled.isprintable() and not {*' "<>\\'} & {*filled}
    is_web = parts.scheme in ("http", "https")
    return is_web and has_host and is_plain and len(template) <= LONGEST_LOG_URL


def log_link(template: str | None, run: Run, now: datetime) -> str | None:
    """The address of a run's lines; None without a template, and before the run begins.

    now: the end of the time that is linked to, for a run that is running.
    """
    if template is None or run.started_at is None:
        return None
    whole, step = log_place(run.id)
    first = run.attempts[0].started_at if run.attempts else run.started_at
    started, ended = first - MARGIN, (run.finished_at or now) + MARGIN
    values = {
        "job": run.job,
        "run": whole,
        "task_id": run.id,
        "step": step or "",
        "attempt": run.attempt,
        "worker": run.worker or "",
        "queue": run.queue or "",
        "started_at": render_milliseconds(started),
        "ended_at": render_milliseconds(ended),
        "started_ms": round(started.timestamp() * 1000),
        "ended_ms": round(ended.timestamp() * 1000),
    }
    return template.format_map({name: quote(str(value), "") for name, value in values.items()})
