"""The address of a run's lines in the team's own log store, from the template of its job.

``log_url: "https://logs.example/?q={run}&from={started_ms}&to={ended_ms}"``
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from string import Formatter
from urllib.parse import quote, urlsplit

from supervisor.errors import did_you_mean
from supervisor.job.run import Run, log_place

#: The times of a link are so much wider than the run: clocks differ, and lines come late.
MARGIN = timedelta(seconds=10)

PLACEHOLDERS = (
    *("job", "run", "task_id", "step", "attempt", "worker", "queue"),
    *("started_at", "ended_at", "started_ms", "ended_ms"),
)

#: Characters: a query of Grafana's or Kibana's is long.
LONGEST = 4_000


def checked_template(template: str) -> str:
    """Raises ValueError, with the hint of `did_you_mean`."""
    try:
        parts = [part for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"{error}: write {{ as %7B and }} as %7D") from error
    for _, name, options, conversion in parts:
        if name not in PLACEHOLDERS or options or conversion:
            known = did_you_mean(str(name), PLACEHOLDERS) or f" (there are {names()})"
            raise ValueError(f"unknown placeholder {{{name}}}{known}")
    if not is_link(template):
        raise ValueError("not an http or https address such as https://logs.example/?q={run}")
    return template


def names() -> str:
    return ", ".join(PLACEHOLDERS)


def is_link(template: str) -> bool:
    """Whether it leads to a host of its own, whatever stands for its placeholders."""
    filled = template.format_map(dict.fromkeys(PLACEHOLDERS, "1"))
    try:
        parts = urlsplit(template)
        has_host = bool(parts.hostname) and parts.port != 0 and not {*"{}"} & {*parts.netloc}
    except ValueError:
        return False
    is_plain = filled.isascii() and filled.isprintable() and not {*' "<>\\'} & {*filled}
    return parts.scheme in ("http", "https") and has_host and is_plain and len(template) <= LONGEST


def log_link(template: str | None, run: Run, now: datetime) -> str | None:
    """None without a template, and for a run that has not begun. now: the end of one that runs."""
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
        "started_at": as_iso(started),
        "ended_at": as_iso(ended),
        "started_ms": round(started.timestamp() * 1000),
        "ended_ms": round(ended.timestamp() * 1000),
    }
    return template.format_map({name: quote(str(value), "") for name, value in values.items()})


def as_iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
