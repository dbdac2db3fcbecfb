"""What can be done to jobs and runs from here: the same for the API and for the page's buttons."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.backfilling import backfill, missed_in_pause
from supervisor.display.rows import why
from supervisor.display.shapes import run_shape
from supervisor.errors import UnknownRun
from supervisor.ledger.replies import Cancellation
from supervisor.ledger.requests import RunRequest
from supervisor.ledger.runs import Ledger
from supervisor.run import Run, RunState, StepId
from supervisor.spec import JobSpec
from supervisor.web.problems import Refused
from supervisor.web.requests import Pause, Resume, Trigger

#: Farther ahead, instants cannot be told in every time zone.
LONGEST_PAUSE = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class Resumed:
    """caught_up: how many ticks of the pause are run after all."""

    job: str
    caught_up: int


def trigger(ledger: Ledger, job: str, asked: Trigger) -> Run:
    """Raises Refused (409) when the run is skipped: it stays on record as such."""
    spec = ledger.spec(job)
    refuse_what_it_has_no_use_for(spec, asked)
    request = RunRequest(
        args=asked.args,
        kwargs=asked.kwargs,
        params=asked.params,
        overlap=asked.overlap,
        key=asked.key,
        max_wait=asked.max_wait,
    )
    run = ledger.trigger(spec, request)
    if run.state is RunState.SKIPPED:
        raise Refused(409, f"skipped: {why(run)}", run=run_shape(run))
    return run


def refuse_what_it_has_no_use_for(spec: JobSpec, asked: Trigger) -> None:
    if spec.steps and (asked.args is not None or asked.kwargs is not None):
        raise Refused(400, f"{spec.name} has several steps: they begin with params")
    if not spec.steps and asked.params is not None:
        raise Refused(400, f"{spec.name} is one task: it has args and kwargs, no params")


def pause(ledger: Ledger, job: str, asked: Pause) -> datetime | None:
    """Gives until when."""
    spec = ledger.spec(job)
    until = asked.until
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=spec.zone)
    now = ledger.now()
    if until is not None and until <= now:
        raise Refused(400, "until is in the past")
    if until is not None and until > now + LONGEST_PAUSE:
        raise Refused(400, "until is more than 100 years ahead")
    ledger.pause(spec.name, asked.note, until)
    return until


def resume(ledger: Ledger, job: str, asked: Resume) -> Resumed:
    spec = ledger.spec(job)
    since = ledger.resume(spec.name)
    ticks = missed_in_pause(spec, since, ledger.now()) if since and asked.catch_up else []
    backfill(ledger, spec, ticks, overlap=None)
    return Resumed(spec.name, len(ticks))


def cancel(ledger: Ledger, run_id: str) -> Cancellation:
    """Raises Refused (409) when the run has ended."""
    if StepId.of(run_id):
        raise Refused(400, "steps are not cancelled one by one; cancel their run")
    run = ledger.run(run_id)
    done = ledger.cancel(run.id, "cancelled by hand")
    if done is Cancellation.NOT_OPEN:
        raise Refused(409, f"{run_id} has ended: {ended_as(ledger, run_id)}")
    return done


def ended_as(ledger: Ledger, run_id: str) -> str:
    try:
        return ledger.run(run_id).state.value
    except UnknownRun:
        return "unknown by now"
