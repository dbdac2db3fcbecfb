"""The form that runs a job for times that have passed: it names them, and is sent once they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import Conflict, InvalidKey, InvalidRequest
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control
from supervisor.times import in_utc
from supervisor.web.budget import Threads
from supervisor.web.http import RequestRefused, actor_of, form_endpoint
from supervisor.web.templating import job_url, page, root_of

Fields = Mapping[str, str]

#: Times that the form takes at once; the command has `--limit`.
MOST_TIMES = 500


@dataclass(frozen=True, slots=True)
class Backfill:
    ticks: Sequence[datetime]
    """The nominal times from `from` to before `to`."""

    overlap: OverlapPolicy
    """The policy of their runs."""

    @classmethod
    def of(cls, fields: Fields, spec: JobSpec, now: datetime) -> Backfill:
        """Raises InvalidRequest and Conflict."""
        start, end = (moment(fields, name, spec) for name in ("from", "to"))
        ticks = control.backfill_times(spec, start, end, now, MOST_TIMES)
        if not ticks:
            raise InvalidRequest("the job has no times in this span")
        word = fields.get("overlap", "")
        is_policy = word in set(OverlapPolicy)
        return cls(ticks, OverlapPolicy(word) if is_policy else OverlapPolicy.QUEUE_ALL)


def moment(fields: Fields, name: str, spec: JobSpec) -> datetime:
    """A time by the clocks of the job. Raises InvalidRequest."""
    try:
        return in_utc(datetime.fromisoformat(fields.get(name, "")[:40]), spec.zone)
    except ValueError as error:
        raise InvalidRequest(f"{name} is not a time such as 2026-03-01T02:00") from error


def form(ledger: Ledger, request: Request, _: Fields) -> Response:
    """Without times it asks for them; with times it shows which runs there will be."""
    return answer(ledger, request, dict(request.query_params))


def answer(ledger: Ledger, request: Request, fields: Fields, error: str = "") -> Response:
    spec, backfill = scheduled(ledger, request), None
    if "from" in fields and not error:
        try:
            backfill = Backfill.of(fields, spec, ledger.now())
        except (InvalidRequest, Conflict) as refusal:
            error = str(refusal)
    return page(
        request,
        "backfill.html",
        400 if error else 200,
        spec=spec,
        backfill=backfill,
        policies=list(OverlapPolicy),
        fields=fields,
        error=error,
    )


def send(ledger: Ledger, request: Request, fields: Fields) -> Response:
    """Runs the job for as many times as the form showed, and no others."""
    spec = scheduled(ledger, request)
    try:
        backfill = Backfill.of(fields, spec, ledger.now())
        ticks = backfill.ticks
        if fields.get("times") != str(len(ticks)):
            raise InvalidRequest(f"these are {len(ticks)} times by now: show them again")
        by, reason = actor_of(request), fields.get("reason", "")
        control.backfill_ticks(ledger, spec, ticks, backfill.overlap, by=by, reason=reason)
    except (InvalidKey, InvalidRequest, Conflict) as error:
        return answer(ledger, request, fields, str(error))
    return RedirectResponse(f"{root_of(request)}/{job_url(spec.name)}", 303)


def scheduled(ledger: Ledger, request: Request) -> JobSpec:
    spec = ledger.spec(request.path_params["target"])
    if not spec.has_schedule:
        raise RequestRefused(409, f"{spec.name} has no schedule, and so no times that have passed")
    return spec


def backfill_routes(ledger: Ledger, threads: Threads) -> list[Route]:
    path = "/actions/backfill/{target:path}"
    return [
        Route(path, form_endpoint(threads, partial(form, ledger))),
        Route(path, form_endpoint(threads, partial(send, ledger)), methods=["POST"]),
    ]
