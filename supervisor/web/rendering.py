"""The templates, and the words and addresses that they use. Everything is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request

from supervisor.display.reports import harmless, progress_words
from supervisor.display.rows import dropped_words, why
from supervisor.display.shapes import instant
from supervisor.display.steps import items_words, param_words, share_of_step
from supervisor.display.words import age, ahead, duration, pause_words, span, stamp


def shown(value: Any) -> Any:
    """Each text that is put into a page: without what would turn round the text beside it."""
    return harmless(value) if type(value) is str else value


TEMPLATES = Environment(
    loader=PackageLoader("supervisor.web"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=shown,
    trim_blocks=True,
    lstrip_blocks=True,
)


def brief(run_id: str, job: str, now: datetime) -> str:
    """A run's id where its job is named already: without it, and without the date of today."""
    return run_id.removeprefix(f"{job}@").removeprefix(f"{now.astimezone(UTC):%Y-%m-%d}T")


def place_of(request: Request) -> dict[str, str]:
    """For the layout: what addresses are relative to, and that of the page itself."""
    root: str = request.state.visitor.root
    path = request.scope["raw_path"].decode("latin-1").removeprefix(root).lstrip("/")
    query = request.scope["query_string"].decode("latin-1")
    return {"root": root, "here": f"./{path}" + (f"?{query}" if query else "")}


# Addresses are relative to the root of the visitor's session, or of the server.


def job_url(name: str) -> str:
    return f"jobs/{quote(name, safe='')}"


def run_url(run_id: str) -> str:
    return f"runs/{quote(run_id, safe='@:+/')}"


def action_url(verb: str, target: str) -> str:
    return f"actions/{verb}/{quote(target, safe='@:+/')}"


TEMPLATES.filters.update(
    action_url=action_url,
    age=age,
    ahead=ahead,
    brief=brief,
    dropped=dropped_words,
    duration=duration,
    instant=instant,
    items=items_words,
    job_url=job_url,
    params=param_words,
    pause=pause_words,
    progress=progress_words,
    run_url=run_url,
    share=share_of_step,
    span=span,
    stamp=stamp,
    why=why,
)
