"""The pages, each made of parts. The page's script fetches its page again, and replaces the parts
that changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from supervisor.errors import NotConfigured, UnknownJob
from supervisor.job.reports import LogLine
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import StepId
from supervisor.job.secrets import masked
from supervisor.job.spec import JobSpec
from supervisor.job.templates import log_link
from supervisor.ledger.job_record import JobRecord
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import neighbours, running_runs, traces
from supervisor.ledger.queues import Queues
from supervisor.lists.page import BUTTONS, FIRST_PAGE, JOB_CHARTS, JOB_NOTES, JOB_PAGE, RELATED
from supervisor.operate import repeating
from supervisor.operate.doctor import findings_of_queues
from supervisor.operate.job_documents import document_text
from supervisor.operate.job_edits import JobEdits
from supervisor.operate.planning import upcoming
from supervisor.operate.question import is_tick, question_of_run
from supervisor.operate.shapes import params_shape
from supervisor.operate.why import answer
from supervisor.operate.words import LogText, harmless, removal_words, stamp
from supervisor.schedule.deadlines import due_at
from supervisor.web.access import Access
from supervisor.web.access_file import Role
from supervisor.web.budget import Threads, check
from supervisor.web.clock import zone
from supervisor.web.failures_page import FailuresQuery, failures_page
from supervisor.web.http import RequestRefused
from supervisor.web.job_charts import durations_of
from supervisor.web.jobs_page import (
    Standings,
    failing,
    failing_jobs,
    listing_of,
    queueing,
    rows_of,
)
from supervisor.web.jobs_query import JobsQuery
from supervisor.web.queues_page import queue_status
from supervisor.web.record import last_actions, record_page
from supervisor.web.strip import pace_of
from supervisor.web.templating import page as answer_with
from supervisor.web.timeline import REACHES, TimelineQuery, timeline_of_all, timeline_of_job

PageContext = dict[str, Any]

MOST_SHOWN_NOW = 6
MOST_RUNS = 200
RUNS_SHOWN = 25
LINES_SHOWN = 20
KEPT_ITEMS_SHOWN = 20
TIMES_SHOWN = 8
MOST_RELATED = 12
LONGEST_SEARCH = 200

#: Seconds between two looks of a browser at the timeline of all jobs.
TIMELINE_WAIT = 20


@dataclass(frozen=True, slots=True)
class View:
    ledger: Ledger

    target: str
    """The job or run of the page, if it is about one."""

    query: Mapping[str, str]

    now: datetime
    """By the ledger's clock."""

    broker: Queues | None
    edits: JobEdits


PagePart = Callable[[View], PageContext]


def beat(view: View) -> PageContext:
    record = view.ledger.beat()
    is_silent = not record.leads(view.now)
    refusal = view.ledger.refusal() if is_silent else None
    is_refused = record.last_reload_successful is False
    return {
        "beat": record,
        "is_without_jobs": is_refused and not view.ledger.job_names(),
        "is_silent": is_silent,
        "refusal": refusal,  # beats and workers that run cannot say so then
        "troubles": [] if refusal else troubles_of(view),
    }


def troubles_of(view: View) -> list[str]:
    """What `doctor` says of the queues."""
    queues = view.ledger.queues(view.ledger.scheduled().values(), view.broker)
    return [finding.words for finding in findings_of_queues(queues, view.now)]


def of_features(view: View) -> PageContext:
    context: PageContext = {"parts": [template for template, _ in FIRST_PAGE]}
    for _, part in FIRST_PAGE:
        context |= part(view.ledger, view.now)
    return context


def jobs(view: View) -> PageContext:
    """The list, and above it what fails, what runs and what waits."""
    ledger, now = view.ledger, view.now
    everything = Standings(ledger, ledger.job_names(), now)
    pending = [runs.pending for runs in everything.open_runs.values() if runs.pending]
    running_count, running = running_runs(ledger, MOST_SHOWN_NOW)
    failing_count, failing = failing_jobs(ledger, everything, MOST_SHOWN_NOW)
    listing = listing_of(ledger, JobsQuery.of(view.query), everything)
    rows = rows_of(ledger, listing.names, now)
    return {
        "failing": failing,
        "failing_count": failing_count,
        "running": running,
        "running_count": running_count,
        "pending": queueing(ledger, everything.open_runs, MOST_SHOWN_NOW),
        "pending_count": sum(pending),
        "pending_jobs": len(pending),
        "listing": listing,
        "rows": rows,
        "notes": notes_of(view, [row.job.spec for row in rows]),
        "buttons": BUTTONS,
        "has_problems": not listing.names and bool(ledger.beat().problems),
    }


def notes_of(view: View, specs: Sequence[JobSpec]) -> Mapping[str, Sequence[str]]:
    """What features say beside the state of a job."""
    notes: dict[str, list[str]] = {}
    for of_feature in JOB_NOTES:
        for name, words in of_feature(view.ledger, specs, view.now).items():
            notes.setdefault(name, []).append(words)
    return notes


def job(view: View) -> PageContext:
    try:
        record = view.ledger.job(view.target)
    except UnknownJob as error:
        raise RequestRefused(404, f"{error}{removal_of(view)}") from error
    last = traces(view.ledger, [view.target], record.spec.history)[view.target]
    durations = view.ledger.durations_of([record.spec])[view.target]
    loaded = view.edits.job(view.target)
    context: PageContext = {
        "job": record,
        "pace": pace_of(record.spec, durations, view.now),
        "failing": failing(last, record.failures),
        "related": {
            title: some_records(view.ledger, names)
            for related in RELATED
            for title, names in related(view.ledger, record.spec).items()
        },
        "loaded": loaded,
        "keys": document_text(view.edits.shown(loaded)),
        "buttons": BUTTONS,
        "parts": [template for template, _ in JOB_PAGE],
    }
    for _, part in JOB_PAGE:
        context |= part(view.ledger, record.spec, view.now)
    return context


def some_records(ledger: Ledger, names: Sequence[str]) -> tuple[list[JobRecord], int]:
    """The first of the jobs, and how many more there are."""
    shown = names[:MOST_RELATED]
    specs = ledger.some_specs(shown)
    return ledger.records_of([*specs.values()]), len(names) - len(shown)


def job_charts(view: View) -> PageContext:
    """Times to come, durations beside their limits, and what features add."""
    ledger, now = view.ledger, view.now
    spec = ledger.spec(view.target)
    runs = traces(ledger, [spec.name], spec.history)[spec.name]
    context: PageContext = {
        "spec": spec,
        "is_paused": bool(ledger.paused([spec.name])),
        "coming": upcoming(spec, now, TIMES_SHOWN),
        "durations": durations_of(spec, runs, now, zone()),
        "charts": [template for template, _ in JOB_CHARTS],
    }
    for _, part in JOB_CHARTS:
        context |= part(ledger, spec, now)
    return context


def removal_of(view: View) -> str:
    """Who removed the job, and when, if that is known."""
    words = removal_words(view.ledger, view.target)
    return f"; {words}" if words else ""


def timeline(view: View) -> PageContext:
    spec, reach = view.ledger.spec(view.target), view.query.get("reach")
    drawn = timeline_of_job(view.ledger, spec, reach, view.now)
    return {"timeline": drawn, "reaches": REACHES, "target": view.target}


def all_jobs(view: View) -> PageContext:
    """The timeline of all jobs. It costs more than other pages, so it is fetched less often."""
    query = TimelineQuery.of(view.query, view.now)
    drawn = timeline_of_all(view.ledger, query, view.now)
    return {"timeline": drawn, "query": query, "reaches": REACHES, "wait": TIMELINE_WAIT}


def runs(view: View) -> PageContext:
    limit = MOST_RUNS if view.query.get("runs") == "all" else RUNS_SHOWN
    history = view.ledger.history(view.target, limit)
    return {
        "runs": history,
        "target": view.target,
        "has_more": len(history) == RUNS_SHOWN,
        "without_runs": None if history else view.ledger.job(view.target),
    }


def job_log(view: View) -> PageContext:
    """The end of the log of the last run that began."""
    history = view.ledger.history(view.target, RUNS_SHOWN)
    last = next((run for run in history if run.started_at), None)
    lines = numbered(view.ledger.reports.lines(last.id) if last else [])
    return {
        "logged": last,
        "lines": lines[-LINES_SHOWN:],
        "line_count": len(lines),
        "failures": [],
        "log_of": "",
        "find": "",
    }


def run(view: View) -> PageContext:
    run = view.ledger.run(view.target)
    spec = view.ledger.some_specs([run.job]).get(run.job)
    due = due_at(spec, run.nominal_at) if spec and is_tick(run) else None
    log_url = spec and log_link(spec.log_url, run, view.now)
    usual = None
    if spec and run.state is RunState.RUNNING and StepId.of(run.id) is None:
        usual = view.ledger.durations_of([spec])[run.job].quantile(0.5)
    return {
        "run": run,
        "usual": usual,
        "why": explanation(view.ledger, run),
        "success_due_at": due,
        "log_url": log_url,
        "may_repeat": spec is not None and repeating.is_over(run),
        "neighbours": neighbours(view.ledger, run),
        "arguments": arguments_of(run, spec),
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


def steps(view: View) -> PageContext:
    run = view.ledger.run(view.target)
    kept = view.ledger.steps.kept_items(run.id, KEPT_ITEMS_SHOWN) if run.batch else []
    texts = view.ledger.steps.params(run.id) if run.has_steps else {}
    return {
        "run": run,
        "steps": view.ledger.steps.records(run.id) if run.has_steps else [],
        "params": params_shape(run, texts),
        "kept": view.ledger.runs(kept),
    }


def run_log(view: View) -> PageContext:
    """The log, or its lines that have what is looked for, and how the run failed."""
    reports, text = view.ledger.reports, view.query.get("find", "").strip()[:LONGEST_SEARCH]
    lines, failures = numbered(reports.lines(view.target)), reports.failures(view.target)
    return {
        "logged": None,
        "lines": [each for each in lines if text.lower() in each[1].text.lower()],
        "line_count": len(lines),
        "failures": failures,
        "log_of": view.target if lines else "",
        "find": text,
    }


def numbered(lines: Sequence[LogLine]) -> list[tuple[str, LogLine]]:
    """The lines, each with the number of those that were dropped before it."""
    log = LogText()
    return [(log.dropped_before(line), line) for line in lines]


def failures(view: View) -> PageContext:
    return failures_page(view.ledger, FailuresQuery.of(view.query), view.now)


def record(view: View) -> PageContext:
    return record_page(view.ledger, view.query)


def job_record(view: View) -> PageContext:
    return {"entries": last_actions(view.ledger, view.target), "target": view.target}


def queues(view: View) -> PageContext:
    status = queue_status(view.ledger, view.broker)
    return {
        "queues": status.queues,
        "workers": status.workers,
        "running": status.running,
        "running_count": status.count,
        "more": status.more,
    }


def unguarded(view: View) -> PageContext:
    try:
        return {"unguarded": view.edits.unguarded()}
    except NotConfigured:  # the API says that this server may not read RedBeat's schedule
        return {"unguarded": []}


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    """What it is about comes as `target`."""

    template: str
    parts: Sequence[PagePart]


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
    def answer(page: Page, request: Request) -> Response:
        target, query = request.path_params.get("target", ""), request.query_params
        view = View(ledger, target, query, ledger.now(), broker, edits)
        visitor, proxy = request.state.visitor, access.policy.proxy
        may_act = visitor.is_person and visitor.may(Role.OPERATOR)
        context: PageContext = {
            "now": view.now,
            "may_act": may_act,
            "may_edit": may_act and visitor.may(Role.EDITOR) and edits.are_saved,
            "may_log_in": bool(access.tokens) and not visitor.is_person,
            "sign_out": proxy.sign_out if proxy else None,
        }
        for part in page.parts:
            check()
            context |= part(view)
        return answer_with(request, page.template, **context)

    def endpoint(respond: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            return await threads.run(request, respond, request)

        return answered

    return [
        *(Route(page.path, endpoint(partial(answer, page))) for page in PAGES),
        Route("/logs/{target:path}", endpoint(partial(log_file, ledger))),
    ]


def log_file(ledger: Ledger, request: Request) -> Response:
    """A run's log as a file, with its tracebacks at the end. Raises UnknownRun."""
    reports, run = ledger.reports, ledger.run(request.path_params["target"])
    lines = [
        f"{stamp(line.at)} {line.step or ''} {harmless(line.text)}"
        for line in reports.lines(run.id)
    ]
    texts = (failure.traceback.rstrip() for failure in reports.failures(run.id))
    tracebacks = [harmless(line) for text in texts for line in text.split("\n")]
    name = re.sub("[^A-Za-z0-9._-]+", "-", run.id)
    headers = {"Content-Disposition": f'attachment; filename="{name}.log"'}
    return PlainTextResponse("\n".join([*lines, *tracebacks, ""]), headers=headers)
