"""The JSON API: its operations and its routes; openapi.py makes the document.

A method of `Api` is an operation: what it takes, returns and may fail with is declared once, and
the route and its part of the document are made of that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from pydantic_core import PydanticSerializationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supervisor.job.run import RunState
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.page_reads import MOST_ENDS, RunQuery, search
from supervisor.lists.api import FeatureOperations
from supervisor.operate import control, repeating, shapes
from supervisor.operate.job_documents import Document
from supervisor.operate.job_edits import LoadedJob, check_shape
from supervisor.operate.shapes import (
    Job,
    LogLine,
    RecordedAction,
    Run,
    WholeJob,
    WholeRun,
)
from supervisor.web.budget import Threads
from supervisor.web.http import actor_of, document_body, json_body, unless_skipped
from supervisor.web.jobs_page import names_of
from supervisor.web.jobs_query import Filter, JobsQuery
from supervisor.web.openapi import API, document_of
from supervisor.web.operations import (
    OPERATIONS,
    REASON,
    Operation,
    Preconditions,
    Query,
    Schema,
    Tagged,
    etag,
    operation,
    up_to,
)
from supervisor.web.queues_page import queue_status
from supervisor.web.record import action_query

MOST_RUNS = 1_000
MOST_JOBS = 10_000
MOST_ACTIONS = 1_000
RUNS_BY_DEFAULT = "50"

JOBS_QUERIES = (
    Query("search", "Only jobs with this in their name."),
    Query("label", "Only jobs with this label: tenant=acme, or tenant."),
    Query(
        "state",
        "Only jobs in this state; late: half a minute past a time, or past what due_by says.",
        {"type": "string", "enum": [word.value for word in Filter]},
    ),
    up_to(MOST_JOBS, "Up to that many, by name."),
    Query("after", "Only jobs that come after this one."),
)
RUNS_QUERIES = (
    Query("job", "Only runs of this job."),
    Query(
        "outcome",
        "Only runs in this state; of all jobs, among about 40,000 of the newest runs.",
        {"type": "string", "enum": [state.value for state in RunState]},
    ),
    up_to(MOST_RUNS, "Up to that many of those that match, newest first."),
)


ACTIONS_QUERIES = (
    Query("job", "Only on this job, or on those that match: report-*."),
    Query("by", "Only by this name or system user, or deploy-*."),
    Query("verb", "Only this: trigger, cancel, put ..."),
    Query("since", "Only from then on.", {"type": "string", "format": "date-time"}),
    up_to(MOST_ACTIONS, "Up to that many, newest first."),
    Query("before", "Only older ones than the one of this id."),
)


class Api(FeatureOperations):
    @operation("get", "/jobs", queries=JOBS_QUERIES)
    def jobs(self, query: Mapping[str, str]) -> list[Job]:
        """The loaded jobs."""
        ledger, limit = self._ledger, int(query.get("limit", MOST_JOBS))
        search, label = (query.get(word, "") for word in ("search", "label"))
        jobs = JobsQuery(search, label, Filter(query.get("state", Filter.ALL)))
        matching = names_of(ledger, jobs, ledger.now())
        names = [name for name in matching if name > query.get("after", "")][:limit]
        specs = ledger.some_specs(names)
        records = ledger.records_of([specs[name] for name in names if name in specs])
        return [Job.model_validate(record) for record in records]

    @operation("get", "/jobs/{job}")
    def job(self, job: str) -> Tagged[WholeJob]:
        """One job, with its keys; its version is the ETag."""
        return self._whole(self._edits.job(job))

    @operation("put", "/jobs/{job}", queries=(REASON,), errors=(409, 412, 422))
    def put_job(
        self,
        job: str,
        document: Document,
        preconditions: Preconditions,
        query: Mapping[str, str],
        by: Actor,
    ) -> Tagged[WholeJob]:
        """Make a job at run time, or edit it; the same keys again change nothing."""
        reason = query.get("reason", "")
        with self._ledger.actions.trying(Action(by, "put", job, reason, (job,))):
            version = preconditions.version(job, self._edits.version(job))
        saved, is_new = self._edits.save(job, document, version, by, reason)
        return self._whole(saved, is_new=is_new)

    @operation("delete", "/jobs/{job}", 204, queries=(REASON,), errors=(409, 412, 422))
    def remove_job(
        self, job: str, preconditions: Preconditions, query: Mapping[str, str], by: Actor
    ) -> None:
        """Remove a job that was made at run time. Its running runs go on to their end."""
        reason = query.get("reason", "")
        with self._ledger.actions.trying(Action(by, "remove", job, reason, (job,))):
            version = preconditions.version(job, self._edits.job(job).origin.version)
        self._edits.remove(job, version, by, reason)

    @operation("post", "/jobs/{job}/check")
    def check_job(self, job: str, document: Document) -> shapes.Check:
        """What saving a job would do, and what is wrong with it; nothing is saved."""
        return shapes.Check.model_validate(check_shape(self._edits.check(job, document)))

    def _whole(self, job: LoadedJob, *, is_new: bool = False) -> Tagged[WholeJob]:
        [record] = self._ledger.records_of([job.spec])
        whole = WholeJob.model_validate(record)
        whole.keys, whole.editable = self._edits.shown(job), job.is_editable
        whole.version, whole.place = job.origin.version, job.origin.place
        return Tagged(whole, job.origin.version, is_new)

    @operation("get", "/runs", queries=RUNS_QUERIES, errors=(404,))
    def runs(self, query: Mapping[str, str]) -> list[Run]:
        """The latest runs, of all jobs or of one."""
        outcome, job = query.get("outcome"), query.get("job")
        names = self._ledger.job_names() if job is None else [self._ledger.spec(job).name]
        state, limit = RunState(outcome) if outcome else None, query.get("limit", RUNS_BY_DEFAULT)
        filters = RunQuery(state, limit=int(limit), most=MOST_ENDS)
        return [Run.model_validate(run) for run in search(self._ledger, names, filters)]

    # Before the run itself: an id may have slashes in it.
    @operation("get", "/runs/{run}/log")
    def run_log(self, run: str) -> list[LogLine]:
        """The lines that a run logged."""
        lines = self._ledger.reports.lines(self._ledger.run(run).id)
        return [LogLine.model_validate(line) for line in lines]

    @operation("get", "/runs/{run}")
    def run(self, run: str) -> WholeRun:
        """One run, with its steps."""
        return shapes.whole_run(self._ledger, self._ledger.run(run))

    @operation("get", "/queues")
    def queues(self) -> shapes.Queues:
        """Queues, workers, and the runs that are running."""
        status = queue_status(self._ledger, self._broker)
        at_work = {process: [run.id for run in runs] for process, runs in status.running.items()}
        return shapes.Queues.model_validate(
            {"queues": status.queues, "workers": status.workers, "at_work": at_work}
        )

    @operation("get", "/unguarded", errors=(409,))
    def unguarded(self) -> list[shapes.Unguarded]:
        """RedBeat's entries that are no job, up to 1,000; none where no Celery app was named."""
        return [shapes.Unguarded.model_validate(entry) for entry in self._edits.unguarded()]

    @operation("get", "/actions", queries=ACTIONS_QUERIES)
    def actions(self, query: Mapping[str, str]) -> list[RecordedAction]:
        """The record of actions: who did what, and why."""
        limit = int(query.get("limit", RUNS_BY_DEFAULT))
        entries = self._ledger.actions.search(action_query(query, limit))
        return [RecordedAction.model_validate(entry) for entry in entries]

    @operation("post", "/jobs/{job}/trigger", 201, errors=(409,))
    def trigger(self, job: str, body: shapes.Trigger, by: Actor) -> Run:
        """Run a job now or at a time to come, paused or not."""
        request = body.as_request()
        run = control.trigger(self._ledger, job, request, body.at, by=by, reason=body.reason)
        return Run.model_validate(unless_skipped(run))

    @operation("post", "/jobs/{job}/pause")
    def pause(self, job: str, body: shapes.Pause, by: Actor) -> shapes.Paused:
        """Exclude the job's ticks."""
        until = control.pause(self._ledger, job, body.until, by=by, reason=body.reason)
        return shapes.Paused(job=job, until=until)

    @operation("post", "/jobs/{job}/resume")
    def resume(self, job: str, body: shapes.Resume, by: Actor) -> shapes.Resumed:
        """Emit the job's ticks again."""
        catch_up, reason = body.catch_up, body.reason
        caught_up = control.resume(self._ledger, job, catch_up=catch_up, by=by, reason=reason)
        return shapes.Resumed(job=job, caught_up=caught_up)

    @operation("post", "/runs/{run}/retry", 201, errors=(409,))
    def retry(self, run: str, body: shapes.Retry, by: Actor) -> shapes.Repeated:
        """Run an ended run again, with the same arguments."""
        whole, reason = body.whole, body.reason
        repeated = repeating.retry(self._ledger, run, whole=whole, by=by, reason=reason)
        if repeated.run:
            unless_skipped(repeated.run)
        return shapes.Repeated.model_validate(repeated)

    @operation("post", "/jobs/{job}/retry")
    def retry_failures(
        self, job: str, body: shapes.RetryFailures, by: Actor
    ) -> list[shapes.Repeated]:
        """Run the failed runs of a job again that have not been, oldest first."""
        run_ids = repeating.failures_to_repeat(self._ledger, job, body.since, body.limit)
        repeated = repeating.retry_each(self._ledger, run_ids, by=by, reason=body.reason)
        return [shapes.Repeated.model_validate(each) for each in repeated]

    @operation("post", "/runs/{run}/cancel", 202, errors=(409,))
    def cancel(self, run: str, body: shapes.Cancel, by: Actor) -> shapes.Cancelled:
        """End a run."""
        done = control.cancel(self._ledger, run, by=by, reason=body.reason)
        return shapes.Cancelled(run=run, cancellation=done)


# The routes.


@cache
def document() -> Schema:
    """Of all operations, which are known once this module is loaded."""
    return document_of(OPERATIONS)


def api_routes(api: Api, threads: Threads) -> list[Route]:
    served = document()

    async def openapi(_: Request) -> Response:
        return JSONResponse(served)

    return [
        Route(f"{API}/openapi.json", openapi),
        *(route_of(operation, partial(operation.call, api), threads) for operation in OPERATIONS),
    ]


def route_of(operation: Operation, call: Callable[..., Any], threads: Threads) -> Route:
    # The id of a step has a slash in it.
    path = API + operation.path.replace("{run}", "{run:path}").replace("{job}", "{job:path}")
    body = operation.body

    async def endpoint(request: Request) -> Response:
        given: list[Any] = [*request.path_params.values()]
        if body:
            given.append(await json_body(request, body))
        if operation.takes_document:
            given.append(await document_body(request))
        if operation.takes_preconditions:
            given.append(Preconditions.of(request.headers))
        operation.check(request.query_params)
        if operation.queries:
            given.append(request.query_params)
        if operation.is_recorded:
            given.append(actor_of(request))
        return await threads.run(request, respond, given)

    def respond(given: Sequence[Any]) -> Response:
        return response_of(operation, call(*given))

    return Route(path, endpoint, methods=[operation.method.upper()])


def response_of(operation: Operation, answer: Any) -> Response:
    if operation.status == 204:
        return Response(status_code=204)
    status, headers = operation.status, {}
    if isinstance(answer, Tagged):
        status, headers = 201 if answer.is_new else status, {"ETag": etag(answer.version)}
        answer = answer.answer
    try:
        text = operation.answer.dump_json(answer)
    except PydanticSerializationError:  # half a character, which JSON can have and UTF-8 cannot
        text = json.dumps(operation.answer.dump_python(answer, mode="json")).encode()
    return Response(text, status, headers, media_type="application/json")
