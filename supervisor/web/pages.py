"""The pages, each made of parts. The page's script fetches its page again, and replaces the parts
that changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from supervisor.errors import NotConfigured, UnknownJob
from supervisor.features.notices.silences import SilenceStore, silenced
from supervisor.job.run import LogLine, Run, RunState, StepId
from supervisor.job.secrets import masked
from supervisor.job.spec import JobSpec
from supervisor.job.templates import log_link
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import neighbours, running_runs, standings, traces
from supervisor.ledger.queues import Queues
from supervisor.lists.page import FIRST_PAGE
from supervisor.operate import repeating
from supervisor.operate.job_edits import JobEdits, document_text
from supervisor.operate.planning import upcoming
from supervisor.operate.question import is_tick, question_of_run
from supervisor.operate.shapes import params_shape
from supervisor.operate.why import answer
from supervisor.operate.words import LogText, harmless, removal_words, stamp
from supervisor.schedule import due_at
from supervisor.web.access import Access
from supervisor.web.access_file import Role
from supervisor.web.failures_page import SPANS as SPANS_OF_FAILURES
from supervisor.web.failures_page import FailuresQuery, failures_listing
from supervisor.web.http import TEMPLATES, Refused, Threads, check, place_of
from supervisor.web.job_charts import days_of, durations_of
from supervisor.web.jobs_page import (
    JobsQuery,
    failing,
    failing_jobs,
    listing_of,
    pace_of,
    queue_status,
    queueing,
    rows_of,
    troubles_of,
)
from supervisor.web.pictures import SPANS, picture_of, timeline_of
from supervisor.web.record import last_actions
from supervisor.web.record import listing_of as record_of
from supervisor.web.timeline import REACHES, TimelineQuery, timeline_of_all

Context = dict[str, Any]

MOST_SHOWN_NOW = 6
MOST_RUNS = 200
RUNS_SHOWN = 25
MOST_FAILURES = 100
LINES_SHOWN = 20
KEPT_ITEMS_SHOWN = 20
TIMES_SHOWN = 8
LONGEST_SEARCH = 200

#: Seconds between two looks of a browser at the timeline of all jobs.
TIMELINE_WAIT = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """target: the job or run of the page, if it is about one. now: by the ledger's clock."""

    ledger: Ledger
    target: str
    query: Mapping[str, str]
    now: datetime
    broker: Queues | None
    edits: JobEdits


Part = Callable[[Asked], Context]


def beat(asked: Asked) -> Context:
    found = asked.ledger.beat()
    is_silent = not found.leads(asked.now)
    refusal = asked.ledger.refusal() if is_silent else None
    is_refused = found.last_reload_successful is False
    return {
        "beat": found,
        "is_without_jobs": is_refused and not asked.ledger.job_names(),
        "is_silent": is_silent,
        "refusal": refusal,  # beats and workers that run cannot say so then
        "troubles": [] if refusal else list(troubles_of(asked.ledger, asked.broker)),
    }


def of_features(asked: Asked) -> Context:
    found: Context = {}
    for part in FIRST_PAGE:
        found |= part(asked.ledger, asked.now)
    return found


def jobs(asked: Asked) -> Context:
    """The list, and above it what fails, what runs and what waits."""
    ledger = asked.ledger
    open_runs = ledger.open_runs_of(ledger.job_names())
    held = [found.held for found in open_runs.values() if found.held]
    running_count, running = running_runs(ledger, MOST_SHOWN_NOW)
    standing = standings(ledger, ledger.job_names())
    failing_count, found = failing_jobs(ledger, standing, MOST_SHOWN_NOW)
    query = JobsQuery.of(asked.query)
    listing = listing_of(ledger, query, asked.now, standing, open_runs)
    rows = rows_of(ledger, listing.names, asked.now)
    silences = SilenceStore(ledger).in_force(asked.now)
    return {
        "failing": found,
        "failing_count": failing_count,
        "running": running,
        "running_count": running_count,
        "held": queueing(ledger, open_runs, MOST_SHOWN_NOW),
        "held_count": sum(held),
        "held_jobs": len(held),
        "listing": listing,
        "rows": rows,
        "silences": silences,
        "quiet": silenced({row.job.spec.name: row.job.spec for row in rows}, silences),
        "has_problems": not listing.names and bool(ledger.beat().problems),
    }


def job(asked: Asked) -> Context:
    try:
        record = asked.ledger.job(asked.target)
    except UnknownJob as error:
        raise Refused(404, f"{error}{removal_of(asked)}") from error
    last = traces(asked.ledger, [asked.target], RUNS_SHOWN)[asked.target]
    durations = asked.ledger.durations_of([record.spec])[asked.target]
    loaded = asked.edits.job(asked.target)
    silences = SilenceStore(asked.ledger).in_force(asked.now)
    return {
        "job": record,
        "pace": pace_of(record.spec, durations, asked.now),
        "failing": failing(last),
        "following": picture_of(asked.ledger, record),
        "loaded": loaded,
        "keys": document_text(asked.edits.shown(loaded)),
        "silences": [each for each in silences if each.covers(record.spec)],
    }


def job_charts(asked: Asked) -> Context:
    """Times to come, outcomes by day and hour, durations beside their limits."""
    ledger, now = asked.ledger, asked.now
    spec = ledger.spec(asked.target)
    runs = traces(ledger, [spec.name], spec.history)[spec.name]
    return {
        "spec": spec,
        "is_paused": bool(ledger.paused([spec.name])),
        "coming": upcoming(spec, now, TIMES_SHOWN),
        "days": days_of(spec, runs, now, UTC),
        "durations": durations_of(spec, runs, now, UTC),
    }


def removal_of(asked: Asked) -> str:
    """Who removed the job, and when, if that is known."""
    words = removal_words(asked.ledger, asked.target)
    return f"; {words}" if words else ""


def timeline(asked: Asked) -> Context:
    runs = asked.ledger.history(asked.target, MOST_RUNS)
    picture = timeline_of(runs, asked.query.get("span"), asked.now)
    return {"timeline": picture, "spans": SPANS, "target": asked.target}


def all_jobs(asked: Asked) -> Context:
    """The timeline of all jobs. It costs more than other pages, so it is fetched less often."""
    query = TimelineQuery.of(asked.query, asked.now)
    drawn = timeline_of_all(asked.ledger, query, asked.now)
    return {"timeline": drawn, "query": query, "reaches": REACHES, "wait": TIMELINE_WAIT}


def runs(asked: Asked) -> Context:
    limit = MOST_RUNS if asked.query.get("runs") == "all" else RUNS_SHOWN
    found = asked.ledger.history(asked.target, limit)
    return {
        "runs": found,
        "target": asked.target,
        "has_more": len(found) == RUNS_SHOWN,
        "without_runs": None if found else asked.ledger.job(asked.target),
    }


def job_log(asked: Asked) -> Context:
    """The end of the log of the last run that began."""
    found = asked.ledger.history(asked.target, RUNS_SHOWN)
    last = next((run for run in found if run.started_at), None)
    lines = numbered(asked.ledger.reports.lines(last.id) if last else [])
    return {
        "logged": last,
        "lines": lines[-LINES_SHOWN:],
        "line_count": len(lines),
        "failures": [],
        "log_of": "",
        "find": "",
    }


def run(asked: Asked) -> Context:
    found = asked.ledger.run(asked.target)
    spec = asked.ledger.some_specs([found.job]).get(found.job)
    due = due_at(spec, found.nominal_at) if spec and is_tick(found) else None
    log_url = spec and log_link(spec.log_url, found, asked.now)
    return {
        "run": found,
        "why": explanation(asked.ledger, found),
        "success_due_at": due,
        "log_url": log_url,
        "may_repeat": spec is not None and repeating.is_run_again(found),
        "neighbours": neighbours(asked.ledger, found),
        "arguments": arguments_of(found, spec),
    }


def arguments_of(run: Run, spec: JobSpec | None) -> dict[str, str]:
    """For people: what the run was given, or what its job has by now; none of steps and items."""
    given = {"Arguments": run.args, "Keyword arguments": run.kwargs}
    shown = {name: code(run.masked(value)) for name, value in given.items() if value is not None}
    if spec is None or run.has_steps or StepId.of(run.id):
        return shown
    own = {"Arguments": spec.args, "Keyword arguments": spec.kwargs}
    of_job = {
        f"{name}, of the job": code(masked(spec.mask, value))
        for name, value in own.items()
        if value and name not in shown
    }
    return shown | of_job


def code(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def explanation(ledger: Ledger, run: Run) -> list[str]:
    """Nothing for a running run, whose times would stand still; nor what its page shows anyway: for
    several attempts, and for a run that succeeded as it should.
    """
    if run.state is RunState.RUNNING or len(run.attempts) > 1 or StepId.of(run.id):
        return []
    try:
        sentences = answer(question_of_run(ledger, run.id))
    except UnknownJob:
        return []
    return [] if run.state is RunState.SUCCEEDED and len(sentences) == 1 else sentences


def steps(asked: Asked) -> Context:
    found = asked.ledger.run(asked.target)
    kept = asked.ledger.steps.kept_items(found.id, KEPT_ITEMS_SHOWN) if found.batch else []
    texts = asked.ledger.steps.params(found.id) if found.has_steps else {}
    return {
        "run": found,
        "steps": asked.ledger.steps.records(found.id) if found.has_steps else [],
        "params": params_shape(found, texts),
        "kept": asked.ledger.runs(kept),
    }


def run_log(asked: Asked) -> Context:
    """The log, or its lines that have what is looked for, and how the run failed."""
    reports, wanted = asked.ledger.reports, asked.query.get("find", "").strip()[:LONGEST_SEARCH]
    lines, failures = numbered(reports.lines(asked.target)), reports.failures(asked.target)
    found = [each for each in lines if wanted.lower() in each[1].text.lower()] if wanted else lines
    return {
        "logged": None,
        "lines": found,
        "line_count": len(lines),
        "failures": failures,
        "log_of": asked.target if lines else "",
        "find": wanted,
    }


def numbered(lines: Sequence[LogLine]) -> list[tuple[str, LogLine]]:
    """The lines, each with the number of those that were dropped before it."""
    log = LogText()
    return [(log.dropped_before(line), line) for line in lines]


def failures(asked: Asked) -> Context:
    listing = failures_listing(asked.ledger, FailuresQuery.of(asked.query), asked.now)
    return {"listing": listing, "spans": SPANS_OF_FAILURES, "most_runs": MOST_FAILURES}


def record(asked: Asked) -> Context:
    return {"listing": record_of(asked.ledger, asked.query)}


def job_record(asked: Asked) -> Context:
    return {"entries": last_actions(asked.ledger, asked.target), "target": asked.target}


def queues(asked: Asked) -> Context:
    found = queue_status(asked.ledger, asked.broker)
    return {
        "queues": found.queues,
        "workers": found.workers,
        "running": found.running,
        "running_count": found.count,
        "more": found.more,
    }


def unguarded(asked: Asked) -> Context:
    try:
        return {"unguarded": asked.edits.unguarded()}
    except NotConfigured:  # the API says that this server may not read RedBeat's schedule
        return {"unguarded": []}


@dataclass(frozen=True, slots=True)
class Page:
    """path: what it is about comes as `target`."""

    path: str
    template: str
    parts: Sequence[Part]


PAGES = (
    Page("/", "jobs.html", (beat, of_features, jobs)),
    Page("/timeline", "timeline.html", (beat, all_jobs)),
    Page("/failures", "failures.html", (beat, failures)),
    Page("/queues", "queues.html", (beat, queues, unguarded)),
    Page("/record", "record.html", (beat, record)),
    Page("/jobs/{target:path}", "job.html", (job, job_charts, timeline, runs, job_log, job_record)),
    Page("/runs/{target:path}", "run.html", (run, steps, run_log)),
)


def page_routes(
    ledger: Ledger, access: Access, broker: Queues | None, edits: JobEdits, threads: Threads
) -> list[Route]:
    def asked(request: Request) -> Asked:
        target = request.path_params.get("target", "")
        return Asked(ledger, target, request.query_params, ledger.now(), broker, edits)

    async def download(request: Request) -> Response:
        return await threads.run(request, log_file, ledger, request.path_params["target"])

    pages = [Route(page.path, endpoint_of(page, asked, access, threads)) for page in PAGES]
    return [*pages, Route("/logs/{target:path}", download)]


def log_file(ledger: Ledger, run_id: str) -> Response:
    """A run's log as a file, with its tracebacks at the end. Raises UnknownRun."""
    reports, found = ledger.reports, ledger.run(run_id)
    lines = [
        f"{stamp(line.at)} {line.step or ''} {harmless(line.text)}"
        for line in reports.lines(found.id)
    ]
    texts = (failure.traceback.rstrip() for failure in reports.failures(found.id))
    tracebacks = [harmless(line) for text in texts for line in text.split("\n")]
    name = re.sub("[^A-Za-z0-9._-]+", "-", found.id)
    headers = {"Content-Disposition": f'attachment; filename="{name}.log"'}
    return PlainTextResponse("\n".join([*lines, *tracebacks, ""]), headers=headers)


def endpoint_of(
    page: Page, asked_by: Callable[[Request], Asked], access: Access, threads: Threads
) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await threads.run(request, respond, request)

    def respond(request: Request) -> Response:
        asked = asked_by(request)
        visitor = request.state.visitor
        may_act = visitor.is_person and visitor.may(Role.OPERATOR)
        about: Context = {
            "now": asked.now,
            "may_act": may_act,
            "may_edit": may_act and visitor.may(Role.EDITOR) and asked.edits.are_saved,
            "may_log_in": bool(access.tokens) and not visitor.is_person,
            "sign_out": access.policy.proxy.sign_out if access.policy.proxy else None,
            **place_of(request),
        }
        for part in page.parts:
            check()
            about |= part(asked)
        return HTMLResponse(TEMPLATES.get_template(page.template).render(about))

    return endpoint
