"""One action on many jobs, or on many failed runs: chosen by box or by filter, confirmed once.

1. The lists send what is chosen, and the verb, in the address of the confirmation, so that this is
   an ordinary page. What is chosen by filter is looked up again when the form is sent: if it is not
   what was confirmed any more, the page asks again.
2. Each job and run is dealt with by itself, as if it were the only one, under the same reason. What
   is refused does not keep the others from being done, and is listed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha1
from typing import Any, Literal

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import SupervisorError
from supervisor.job.run import RunState
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import failed_runs
from supervisor.ledger.requests import RunRequest
from supervisor.operate import control, repeating, shapes
from supervisor.operate.failures import groups_of
from supervisor.operate.words import reason_words
from supervisor.web.failures_page import DEFAULT_SPAN, SPANS, FailuresQuery, failures_of
from supervisor.web.http import (
    TEMPLATES,
    Refused,
    Threads,
    actor_of,
    form_endpoint,
    place_of,
    root_of,
    validated,
)
from supervisor.web.jobs_page import JobsQuery, names_of

Fields = Mapping[str, str]

VERBS = ("trigger", "pause", "resume", "retry")

#: Jobs or runs that one form may be about.
MOST_CHOSEN = 500

#: Seconds after which no further one is begun: a request has four.
LONGEST_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Chosen:
    """targets: names of jobs, or ids of runs for the verb retry. back: the address of the list.

    by_filter: whether all that match are chosen. left_out: how many more match than one form may be
    about.
    """

    verb: str
    targets: Sequence[str]
    of: Literal["jobs", "runs"]
    back: str
    by_filter: bool
    left_out: int = 0

    @property
    def digest(self) -> str:
        """Names what was confirmed."""
        text = "\n".join((self.verb, *self.targets))
        return sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Undone:
    target: str
    why: str


def bulk_routes(ledger: Ledger, threads: Threads) -> list[Route]:
    answers = {"GET": partial(confirm, ledger), "POST": partial(result, ledger)}
    return [
        Route("/actions/bulk", form_endpoint(threads, answer), methods=[method])
        for method, answer in answers.items()
    ]


def chosen_in(ledger: Ledger, query: QueryParams, now: datetime) -> Chosen:
    """Raises Refused."""
    verb, is_all = query.get("verb", ""), "all" in query
    if verb not in VERBS:
        raise Refused(400, f"verb is one of {', '.join(VERBS)}")
    picked = query.getlist("pick")
    if query.get("of") == "failures":
        asked = FailuresQuery.of(query)
        groups = failures_of(ledger, asked, now)[0]
        runs = [run for g in groups if is_all or g.id in picked for run in g.left]
        return bounded(verb, runs, "runs", asked.url(page=asked.page), by_filter=is_all)
    jobs = JobsQuery.of(query)
    names = [*names_of(ledger, jobs, now)] if is_all else picked
    if verb == "retry":
        found, _ = failed_runs(ledger, names, now - SPANS[DEFAULT_SPAN])
        runs = [run for group in groups_of(ledger, found) for run in group.left]
        return bounded(verb, runs, "runs", jobs.url(page=jobs.page), by_filter=is_all)
    return bounded(verb, names, "jobs", jobs.url(page=jobs.page), by_filter=is_all)


def bounded(
    verb: str, targets: Sequence[str], of: Literal["jobs", "runs"], back: str, *, by_filter: bool
) -> Chosen:
    left_out = max(0, len(targets) - MOST_CHOSEN)
    return Chosen(verb, targets[:MOST_CHOSEN], of, back, by_filter, left_out)


def confirm(ledger: Ledger, request: Request, fields: Fields) -> Response:
    return shown(request, chosen_in(ledger, request.query_params, ledger.now()), fields)


def result(ledger: Ledger, request: Request, fields: Fields) -> Response:
    chosen = chosen_in(ledger, request.query_params, ledger.now())
    if chosen.by_filter and fields.get("digest") != chosen.digest:
        what = "what matches is not what it was: look at it again"
        return shown(request, chosen, fields, error=what, status=409)
    try:
        act = ACTS[chosen.verb](fields)
    except Refused as error:
        return shown(request, chosen, fields, error=str(error), status=error.status_code)
    undone = done_to_each(ledger, chosen.targets, act, actor_of(request))
    if undone:
        return shown(request, chosen, fields, undone=undone)
    return RedirectResponse(f"{root_of(request)}/{chosen.back}", 303)


#: Does it to one; gives why it was not done, or nothing.
Act = Callable[[Ledger, str, Actor], str]


def done_to_each(ledger: Ledger, targets: Sequence[str], act: Act, by: Actor) -> list[Undone]:
    undone: list[Undone] = []
    ends_at = time.monotonic() + LONGEST_SECONDS
    for number, target in enumerate(targets):
        if time.monotonic() > ends_at:
            late = "not begun: it took too long. Do it again for these"
            return undone + [Undone(rest, late) for rest in targets[number:]]
        try:
            why = act(ledger, target, by)
        except SupervisorError as error:
            why = str(error)
        if why:
            undone.append(Undone(target, why))
    return undone


def shown(
    request: Request,
    chosen: Chosen,
    fields: Fields,
    *,
    error: str = "",
    undone: Sequence[Undone] = (),
    status: int = 200,
) -> Response:
    text = TEMPLATES.get_template("bulk.html").render(
        chosen=chosen,
        fields=fields,
        error=error,
        undone=undone,
        most=MOST_CHOSEN,
        **place_of(request),
    )
    return HTMLResponse(text, status)


# The verbs: each reads the form once, and then acts on one job or run after another.


def triggering(fields: Fields) -> Act:
    asked = validated(shapes.Trigger, json.dumps({"reason": fields.get("reason", "")}))

    def act(ledger: Ledger, job: str, by: Actor) -> str:
        run = control.trigger(ledger, job, RunRequest(), by=by, reason=asked.reason)
        return f"skipped: {reason_words(run)}" if run.state is RunState.SKIPPED else ""

    return act


def pausing(fields: Fields) -> Act:
    request: dict[str, Any] = {
        "note": fields.get("reason", ""),
        "until": fields.get("until") or None,
    }
    asked = validated(shapes.Pause, json.dumps(request))

    def act(ledger: Ledger, job: str, by: Actor) -> str:
        control.pause(ledger, job, asked.note, asked.until, by=by)
        return ""

    return act


def resuming(fields: Fields) -> Act:
    asked = validated(shapes.Resume, json.dumps({"reason": fields.get("reason", "")}))
    catch_up = "catch_up" in fields

    def act(ledger: Ledger, job: str, by: Actor) -> str:
        if not ledger.paused([job]):
            return "it is not paused"
        control.resume(ledger, job, catch_up=catch_up, by=by, reason=asked.reason)
        return ""

    return act


def retrying(fields: Fields) -> Act:
    asked = validated(shapes.Retry, json.dumps({"reason": fields.get("reason", "")}))

    def act(ledger: Ledger, run_id: str, by: Actor) -> str:
        run = repeating.retry(ledger, run_id, by=by, reason=asked.reason).run
        skipped = run and run.state is RunState.SKIPPED
        return f"skipped: {reason_words(run)}" if run and skipped else ""

    return act


ACTS: Mapping[str, Callable[[Fields], Act]] = {
    "trigger": triggering,
    "pause": pausing,
    "resume": resuming,
    "retry": retrying,
}
