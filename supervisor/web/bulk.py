"""One action on many jobs, or on many failed runs: chosen by box or by filter, confirmed once.

1. The lists send what is chosen, and the verb, in the address of the confirmation, so that this is
   an ordinary page. What is chosen by filter is looked up again when the form is sent: if it is not
   what was confirmed any more, the page asks again.
2. Each job and run is dealt with by itself, as if it were the only one, under the same reason. What
   is refused does not keep the others from being done, and is listed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha1

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import SupervisorError
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import failed_runs
from supervisor.operate.failures import groups_of
from supervisor.web.actions import ACTIONS
from supervisor.web.budget import Threads
from supervisor.web.buttons import Fields
from supervisor.web.failures_page import DEFAULT_SPAN, SPANS, FailuresQuery, failures_of
from supervisor.web.http import RequestRefused, actor_of, form_endpoint
from supervisor.web.jobs_page import names_of
from supervisor.web.jobs_query import JobsQuery
from supervisor.web.templating import page, root_of

VERBS = ("trigger", "pause", "resume", "retry")

#: Jobs or runs that one form may be about.
MOST_CHOSEN = 500

#: Seconds after which no further one is begun: a request has four.
LONGEST_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Chosen:
    verb: str

    matching: Sequence[str]
    """Names of jobs, or ids of runs for the verb retry, with those that are too many for one form.
    """

    back: str
    """The address of the list, which is one of jobs or of failures."""

    of_jobs: bool

    by_filter: bool
    """Whether all that match are chosen."""

    @property
    def targets(self) -> Sequence[str]:
        return self.matching[:MOST_CHOSEN]

    @property
    def digest(self) -> str:
        """Names what was confirmed."""
        text = "\n".join((self.verb, *self.targets))
        return sha1(text.encode(), usedforsecurity=False).hexdigest()


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
        raise RequestRefused(400, f"verb is one of {', '.join(VERBS)}")
    picked = query.getlist("pick")
    if query.get("of") == "failures":
        failures = FailuresQuery.of(query)
        groups = [g for g in failures_of(ledger, failures, now)[0] if is_all or g.id in picked]
        left = [run for group in groups for run in group.left]
        return Chosen(verb, left, failures.url(page=failures.page), False, is_all)
    jobs = JobsQuery.of(query)
    targets = [*names_of(ledger, jobs, now)] if is_all else picked
    if verb == "retry":
        runs, _ = failed_runs(ledger, targets, now - SPANS[DEFAULT_SPAN])
        targets = [run for group in groups_of(ledger, runs) for run in group.left]
    return Chosen(verb, targets, jobs.url(page=jobs.page), True, is_all)


def confirm(ledger: Ledger, request: Request, fields: Fields) -> Response:
    return shown(request, chosen_in(ledger, request.query_params, ledger.now()), fields)


def result(ledger: Ledger, request: Request, fields: Fields) -> Response:
    chosen = chosen_in(ledger, request.query_params, ledger.now())
    if chosen.by_filter and fields.get("digest") != chosen.digest:
        what = "what matches is not what it was: look at it again"
        return shown(request, chosen, fields, error=what, status=409)
    try:
        undone = done_to_each(ledger, chosen, request, fields)
    except RequestRefused as error:
        return shown(request, chosen, fields, error=str(error), status=error.status_code)
    if undone:
        return shown(request, chosen, fields, undone=undone)
    return RedirectResponse(f"{root_of(request)}/{chosen.back}", 303)


def done_to_each(
    ledger: Ledger, chosen: Chosen, request: Request, fields: Fields
) -> Mapping[str, str]:
    """Why it was not done, by the target. Raises Refused for a form that is not valid."""
    act, by, undone = ACTIONS[chosen.verb], actor_of(request), dict[str, str]()
    ends_at = time.monotonic() + LONGEST_SECONDS
    for number, target in enumerate(chosen.targets):
        if time.monotonic() > ends_at:
            late = "not begun: it took too long. Do it again for these"
            return undone | dict.fromkeys(chosen.targets[number:], late)
        try:
            act(ledger, target, fields, by)
        except RequestRefused as error:
            if error.status_code == 400:
                raise
            undone[target] = str(error)
        except SupervisorError as error:
            undone[target] = str(error)
    return undone


def shown(
    request: Request,
    chosen: Chosen,
    fields: Fields,
    *,
    error: str = "",
    undone: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    return page(
        request, "bulk.html", status, chosen=chosen, fields=fields, error=error, undone=undone or {}
    )
