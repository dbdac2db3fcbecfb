"""Templates, and the words and addresses in them. Everything is escaped."""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from supervisor.job.changes import value
from supervisor.job.spec import JobSpec
from supervisor.operate.plans import clock_change_text
from supervisor.operate.shapes import iso_utc
from supervisor.operate.words import (
    age,
    ahead,
    dropped_words,
    duration,
    harmless,
    items_words,
    param_words,
    pause_words,
    progress_words,
    share_of_step,
    span,
    targets,
    what_words,
    where,
    who,
)
from supervisor.web.clock import stamp, zone

LONGEST_NAME = 60

#: Colours that page.css has for installations.
HUES = 6


def place_of(request: Request) -> dict[str, Any]:
    """For the layout: the root that addresses are relative to, the page's own address, whether it
    is a page of its own or shown in a dialog, its visitor, the zone of its times, and the name of
    the installation.
    """
    raw_path = request.scope["raw_path"].decode("latin-1")
    path = raw_path.removeprefix(root_of(request)).lstrip("/")
    query = request.scope["query_string"].decode("latin-1")
    here = f"./{path}" + (f"?{query}" if query else "")
    return {
        "root": root_of(request),
        "here": here,
        "is_alone": "part" not in request.query_params,
        "visitor": request.state.visitor,
        "zone": str(zone()),
        "installation": request.app.state.installation,
    }


def hue(installation: str) -> int:
    """The number of a colour, which tells its pages from those of other installations."""
    return zlib.crc32(installation.encode()) % HUES


def root_of(request: Request) -> str:
    """What all our addresses begin with: the path below which a proxy serves us, or empty."""
    return str(request.scope["root_path"])


def path_of(request: Request) -> str:
    """The path as the routes have it; `request.url` depends on the Host header."""
    return str(request.scope["path"]).removeprefix(root_of(request))


# Addresses are relative to the root of the server.


def job_url(name: str) -> str:
    return f"jobs/{quote(name, safe='')}"


def run_url(run_id: str) -> str:
    return f"runs/{quote(run_id, safe='@:+/')}"


def action_url(verb: str, target: str) -> str:
    return f"actions/{verb}/{quote(target, safe='@:+/')}"


def local(moment: datetime, spec: JobSpec) -> str:
    """The time by the clocks of the job."""
    there = moment.astimezone(spec.zone)
    return f"{there:%a %Y-%m-%d %H:%M}{f':{there:%S}' if there.second else ''} {there:%Z}"


# The templates.


def shown(value: Any) -> Any:
    """A value in a page, without characters that would reverse the text beside it."""
    return harmless(value) if type(value) is str else value


def coded(text: str) -> Markup:
    """Marks text between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(harmless(text)))))


def breakable(text: str) -> Markup:
    """Text that may break after a bracket, a slash or a sign, and so less often within a word."""
    parts = re.split(r"(?<=[(/=,])(?=\S)", harmless(text))
    return Markup("<wbr>").join(escape(part) for part in parts)


def brief(run_id: str, job: str, now: datetime) -> str:
    """A run's id without the name of its job, and without the date if that is today's."""
    return run_id.removeprefix(f"{job}@").removeprefix(f"{now.astimezone(UTC):%Y-%m-%d}T")


ENVIRONMENT = Environment(
    loader=ChoiceLoader([PackageLoader("supervisor.web"), PackageLoader("supervisor", "features")]),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "action_url": action_url,
    "age": age,
    "ahead": ahead,
    "breakable": breakable,
    "brief": brief,
    "clock_change": clock_change_text,
    "code": coded,
    "dropped": dropped_words,
    "duration": duration,
    "host": lambda url: urlsplit(url).hostname,
    "hue": hue,
    "instant": iso_utc,
    "items": items_words,
    "job_url": job_url,
    "local": local,
    "params": param_words,
    "pause": pause_words,
    "progress": progress_words,
    "run_url": run_url,
    "share": share_of_step,
    "span": span,
    "stamp": stamp,
    "targets": targets,
    "value": value,
    "what": lambda entry: "; ".join(what_words(entry)),
    "where": where,
    "who": who,
}

TEMPLATES = Jinja2Templates(env=ENVIRONMENT, context_processors=[place_of])


def page(request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
    return TEMPLATES.TemplateResponse(request, template, context, status)
