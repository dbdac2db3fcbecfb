"""Actions on jobs and runs: the same for the command line, the API and the page's buttons.

An invalid request raises an error with a message for people; each of the three shows it in its own
way. Each action is entered in the record of actions, with `by` as the one who asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from supervisor.catalog.job_checks import LARGEST_ARGUMENTS
from supervisor.errors import Conflict, InvalidRequest, UnknownRun
from supervisor.job.changes import value
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import Run
from supervisor.job.run_ids import StepId, backfill_id, manual_id
from supervisor.job.secrets import masked
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.ledger.actions import LONGEST_REASON, Action, Actor, Change, short
from supervisor.ledger.admission import Admission
from supervisor.ledger.attempt import Cancellation
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.schedule import schedule_of, ticks_between
from supervisor.schedule.emission import emission
from supervisor.times import INSTANT, render_moment, to_come

BY_HAND = "cancelled by hand"


def trigger(
    ledger: Ledger,
    job: str,
    request: RunRequest,
    at: datetime | None = None,
    *,
    by: Actor,
    reason: str = "",
) -> Run:
    """Runs a job now, paused or not; a run that is skipped is recorded as such.

    at: the run waits until then and is for that time; without an offset, one in the job's zone.
    Raises UnknownJob, InvalidKey, UnknownRun for a run that it is to follow, and InvalidRequest
    for arguments that the job cannot take, and for a time in the past.
    """
    with ledger.actions.trying(Action(by, "trigger", job, reason, (job,))) as action:
        spec = ledger.spec(job)
        check_arguments(spec, request)
        check_after(ledger, request, at)
        if at is not None:
            now = ledger.now()
            moment = to_come("at", at, spec.zone, now)
            request = replace(request, nominal_at=moment, delay=moment - now)
        request = replace(request, run_id=request.run_id or manual_id(spec.name))
        return ledger.trigger(spec, request, replace(action, changes=changes_of(spec, request)))


def changes_of(spec: JobSpec, request: RunRequest) -> tuple[Change, ...]:
    """The run, and what it has in place of the job's own."""
    given = {
        "run": request.run_id,
        "args": masked(spec.mask, request.args),
        "kwargs": masked(spec.mask, request.kwargs),
        "params": masked(spec.mask, request.params),
        "key": request.key,
        "overlap": request.overlap and request.overlap.value,
        "at": request.nominal_at and render_moment(request.nominal_at),
        "after": request.after,
    }
    return tuple(Change(spec.name, key, value(v)) for key, v in given.items() if v is not None)


def check_arguments(spec: JobSpec, request: RunRequest) -> None:
    """Raises InvalidRequest."""
    if spec.steps and (request.args is not None or request.kwargs is not None):
        raise InvalidRequest(f"{spec.name} has several steps: they start with params")
    if not spec.steps and request.params is not None:
        raise InvalidRequest(f"{spec.name} is one task: it has args and kwargs, no params")
    size = sum(check_json(name, getattr(request, name)) for name in ("args", "kwargs", "params"))
    if size > LARGEST_ARGUMENTS:
        what = f"the arguments are {size:,} bytes of JSON; {LARGEST_ARGUMENTS:,} are allowed"
        raise InvalidRequest(f"{what}: store the data and pass where it is")


def check_after(ledger: Ledger, request: RunRequest, at: datetime | None) -> None:
    """Raises UnknownRun and InvalidRequest."""
    if request.after is None:
        return
    if at is not None:
        raise InvalidRequest("a run waits until a time or for another run, not for both")
    if StepId.of(request.after):
        raise InvalidRequest(f"{request.after} is a part of a run; name the whole run")
    ledger.run(request.after)


def check_json(name: str, value: Any) -> int:
    """How many bytes it has, 0 for None.

    Python's JSON reader accepts NaN, Infinity and lone surrogates; other readers do not.
    """
    if value is None:
        return 0
    try:
        return len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: half a character is no text") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{name}: NaN and Infinity are not JSON") from None


def pause(
    ledger: Ledger,
    job: str,
    until: datetime | None = None,
    *,
    by: Actor,
    reason: str = "",
) -> datetime | None:
    """Excludes the job's ticks until `until`, or until it is resumed. Returns the end.

    until: without an offset, a time in the job's zone. reason: is shown with the job. Raises
    UnknownJob and InvalidRequest.
    """
    with ledger.actions.trying(Action(by, "pause", job, reason, (job,))) as action:
        spec = ledger.spec(job)
        if isinstance(spec, GuardedTaskSpec):
            raise InvalidRequest(f"{job} has no ticks that a pause would exclude: code calls it")
        moment = until and to_come("until", until, spec.zone, ledger.now())
        change = Change(job, "until", render_moment(moment) if moment else "it is resumed")
        note = short(reason, LONGEST_REASON)
        ledger.pause(spec.name, note, moment, replace(action, changes=(change,)))
        return moment


def resume(ledger: Ledger, job: str, *, catch_up: bool = False, by: Actor, reason: str = "") -> int:
    """Ends a pause; returns how many of its ticks run after all.

    catch_up: run those that the job's `catchup` would run after an outage. Raises UnknownJob.
    """
    with ledger.actions.trying(Action(by, "resume", job, reason, (job,))) as action:
        spec = ledger.spec(job)
        changes = (Change(job, "catch_up", "yes"),) if catch_up else ()
        since = ledger.resume(spec.name, replace(action, changes=changes))
        ticks = missed_in_pause(spec, since, ledger.now()) if since and catch_up else []
        backfill(ledger, spec, ticks, overlap=None)
        return len(ticks)


def backfill_times(
    spec: JobSpec, start: datetime, end: datetime, now: datetime, most: int
) -> list[datetime]:
    """The nominal times from `start` to before `end`. Raises InvalidRequest, and Conflict for more
    than `most`.
    """
    if start >= end:
        raise InvalidRequest("from must be before to")
    if end > now:
        raise InvalidRequest("to is in the future: beat will run the job at those times")
    ticks = ticks_between(schedule_of(spec), start - INSTANT, end - INSTANT, most + 1)
    if len(ticks) > most:
        what = f"there are more than {most} nominal times"
        raise Conflict(f"{what}: take a shorter span, or raise --limit of `supervisor backfill`")
    return ticks


def backfill_ticks(
    ledger: Ledger,
    spec: JobSpec,
    ticks: Sequence[datetime],
    overlap: OverlapPolicy,
    *,
    by: Actor,
    reason: str = "",
) -> list[Admission]:
    """Runs the job for nominal times that have passed, in order."""
    if not ticks:
        return []
    span = f"{len(ticks)} from {render_moment(ticks[0])} to {render_moment(ticks[-1])}"
    changes = Change(spec.name, "ticks", span), Change(spec.name, "overlap", overlap.value)
    action = Action(by, "backfill", spec.name, reason, (spec.name,), changes)
    with ledger.actions.trying(action):
        return backfill(ledger, spec, ticks, overlap, action)


def cancel(ledger: Ledger, run_id: str, *, by: Actor, reason: str = "") -> Cancellation:
    """Ends a run, a step or an item: at once, or within its `stop_grace` if it is running.

    Raises UnknownRun, and Conflict when it has ended.
    """
    with ledger.actions.trying(Action(by, "cancel", run_id, reason)) as action:
        run = ledger.run(run_id)
        done = ledger.cancel(run.id, BY_HAND, replace(action, jobs=(run.job,)))
        if done is Cancellation.NOT_OPEN:
            raise Conflict(f"{run_id} has ended: {ended_as(ledger, run_id)}")
        return done


def ended_as(ledger: Ledger, run_id: str) -> str:
    """An item that succeeded leaves no record."""
    try:
        return ledger.run(run_id).state.words
    except UnknownRun:
        return "unknown by now"


# Runs for nominal times that have passed: on demand, or for the time of a pause.


#: Admitted in one round trip.
CHUNK = 500

#: A backfill is wanted in full: none of it is dropped because too many runs wait.
UNBOUNDED = 1_000_000


def backfill(
    ledger: Ledger,
    spec: JobSpec,
    nominal_times: Sequence[datetime],
    overlap: OverlapPolicy | None = OverlapPolicy.QUEUE_ALL,
    action: Action | None = None,
) -> list[Admission]:
    """Admits a run for each nominal time, in order; without a policy it is the job's.

    They are runs triggered by hand, each for its own nominal time; the watermark and the outcomes
    of the ticks themselves do not change. Their ids are those of the ticks with a suffix, so that a
    time can be backfilled again. action: entered with the first of them.

    With `queue_all` all of them wait as long as it takes, whatever the job's bounds.
    """
    waits = overlap is OverlapPolicy.QUEUE_ALL
    requests = [
        RunRequest(
            run_id=backfill_id(spec.name, nominal_at),
            nominal_at=nominal_at,
            overlap=overlap,
            max_waiting=UNBOUNDED if waits else None,
            waits_for_ever=waits,
        )
        for nominal_at in nominal_times
    ]
    admissions: list[Admission] = []
    for start in range(0, len(requests), CHUNK):
        first = action if start == 0 else None
        admissions += ledger.admit_requests(spec, requests[start : start + CHUNK], first)
    return admissions


def missed_in_pause(spec: JobSpec, since: datetime, now: datetime) -> list[datetime]:
    """The ticks of a pause that the job's `catchup` would have run after an outage."""
    missed: list[datetime] = []
    while ticks := emission(spec, schedule_of(spec), since, now).ticks:
        missed += [tick.nominal_at for tick in ticks]
        since = missed[-1]
    return missed
