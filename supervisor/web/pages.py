"""The pages, each of parts that can be asked for alone: ``?parts=jobs,now`` is what the page's
script fetches when something of them has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from supervisor.execution.consumption import Queues
from supervisor.ledger.fingerprints import Kind, Topic
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import StepId
from supervisor.web import parts
from supervisor.web.access import Access
from supervisor.web.budget import Threads, check
from supervisor.web.events import events_url
from supervisor.web.gate import Visitor
from supervisor.web.parts import Asked, Context, Part
from supervisor.web.rendering import TEMPLATES, place_of

NOW, BEAT, WORKERS = Topic(Kind.NOW), Topic(Kind.BEAT), Topic(Kind.WORKERS)


@dataclass(frozen=True, slots=True)
class Page:
    """path: what it is about comes as `target`. topics: what the page's parts are made of."""

    path: str
    template: str
    parts: Mapping[str, Part]
    topics: Callable[[Context, str], list[Topic]]


PAGES = (
    Page(
        *("/", "jobs.html", {"beat": parts.beat, "now": parts.now, "jobs": parts.jobs}),
        lambda found, _: [
            BEAT,
            NOW,
            WORKERS,
            *(Topic(Kind.JOB, name) for name in found["listing"].names),
        ],
    ),
    Page(
        *("/failures", "failures.html", {"beat": parts.beat, "failures": parts.failures}),
        lambda *_: [BEAT, NOW],
    ),
    Page(
        *("/queues", "queues.html", {"beat": parts.beat, "queues": parts.queues}),
        lambda *_: [BEAT, NOW, WORKERS],
    ),
    Page(
        *("/jobs/{target:path}", "job.html"),
        {"job": parts.job, "timeline": parts.timeline, "runs": parts.runs, "log": parts.job_log},
        lambda found, job: [Topic(Kind.JOB, job), *run_topics(found)],
    ),
    Page(
        *("/runs/{target:path}", "run.html"),
        {"run": parts.run, "steps": parts.steps, "log": parts.run_log},
        lambda _, run: [Topic(Kind.RUN, log_topic) for log_topic in {run, whole(run)}],
    ),
)


def run_topics(found: Context) -> list[Topic]:
    """Of a job's page: the run whose log is shown, and those at work."""
    open_runs = [run.id for run in found["runs"] if run.state.is_open][:20]
    logged = [found["logged"].id] if found["logged"] else []
    return [Topic(Kind.RUN, run_id) for run_id in dict.fromkeys(logged + open_runs)]


def whole(run_id: str) -> str:
    place = StepId.of(run_id)
    return place.run if place else run_id


def page_routes(
    ledger: Ledger, access: Access, broker: Queues | None, threads: Threads
) -> list[Route]:
    return [Route(page.path, endpoint_of(page, ledger, access, broker, threads)) for page in PAGES]


def endpoint_of(
    page: Page, ledger: Ledger, access: Access, broker: Queues | None, threads: Threads
) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await threads.run(request, answer, request)

    def answer(request: Request) -> Response:
        target = request.path_params.get("target", "")
        asked = Asked(ledger, target, request.query_params, ledger.now(), broker)
        standing = standing_of(request.state.visitor, access)
        about = {"now": asked.now, **place_of(request), **standing}
        if "parts" in request.query_params:
            wanted = set(request.query_params["parts"].split(","))
            found = [rendered(page, name, asked, about) for name in page.parts if name in wanted]
            return HTMLResponse("".join(found))
        return HTMLResponse(rendered_whole(page, asked, about))

    return endpoint


def rendered(page: Page, name: str, asked: Asked, about: Mapping[str, Any]) -> str:
    """A part alone."""
    check()
    template = TEMPLATES.get_template(f"parts/{name}.html")
    return template.render(**about, **page.parts[name](asked))


def rendered_whole(page: Page, asked: Asked, about: Mapping[str, Any]) -> str:
    found: Context = {}
    for part in page.parts.values():
        check()
        found |= part(asked)
    url = events_url(*page.topics(found, asked.target))
    return TEMPLATES.get_template(page.template).render(**about, **found, events=url)


def standing_of(visitor: Visitor, access: Access) -> dict[str, Any]:
    """What the visitor may do, for the templates."""
    return {
        "may_act": visitor.has_session,
        "may_log_in": access.has_actions and not visitor.has_session,
    }
