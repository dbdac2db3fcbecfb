"""Runs again what has ended: with the arguments that the run had, or from the step that failed.

1. The new run is one of its own, for the same nominal time. It names the run that it repeats, and
   goes the way of a triggered run: its place is what the job's overlap policy says.
2. Its arguments are those that the run had when it began last, whatever the job says by now. What
   else there is - task, queue, limits, policies - is the job's as it is now.
3. A run of several steps has the plan of the run that it repeats. Steps that succeeded, up to the
   first stage in which one did not, are not run again; the params are handed on as they were left.
4. While a run is being repeated, it is not repeated a second time: the ledger refuses that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from supervisor.errors import Conflict, InvalidRequest, SupervisorError
from supervisor.guard.delivery import own_headers
from supervisor.job.content import content_of_job
from supervisor.job.run import FAILURES, Reference, Run, RunState
from supervisor.job.run_ids import StepId, backfill_id, manual_id, tick_id
from supervisor.job.secrets import has_references, texts_in
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.job.steps import without_done
from supervisor.ledger.actions import Action, Actor, Change
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import DROPPED_PARAM, FORMER_KEPT
from supervisor.ledger.page_reads import FailedRun, RunQuery, search
from supervisor.ledger.run_request import RunRequest
from supervisor.times import in_utc, ms_of

#: Runs that one request has run again.
MOST_REPEATS = 200

#: Failed runs of a job that are looked at.
MOST_FAILURES = 10_000

#: How a repeat ends that has not run: what it was to repeat is still to be done.
NOT_DONE = frozenset({RunState.SKIPPED, RunState.CANCELLED, RunState.REPLACED})

#: Options of a call by which Celery's canvas knows its caller: that has heard of the failure.
OF_CALLER = ("chord", "group_id", "group_index", "root_id", "parent_id", "reply_to")


@dataclass(frozen=True, slots=True)
class Repeat:
    """What running a run again would do."""

    run: Run
    spec: JobSpec
    request: RunRequest

    done: tuple[str, ...]
    """Names of the steps that are not run again."""

    is_edited: bool
    """The job has been edited since the run began."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """What became of a run that was to be repeated: the new run, or why there is none."""

    of: str
    run: Run | None

    is_edited: bool = False
    """The job has been edited since the run began."""

    error: str = ""


def retry(
    ledger: Ledger, run_id: str, *, whole: bool = False, by: Actor, reason: str = ""
) -> Repeated:
    """Runs an ended run again; one that is skipped is recorded as such.

    whole: of a run of several steps, from its first step. Raises UnknownRun, UnknownJob,
    InvalidRequest for what is no whole run, and Conflict where it cannot be repeated now.
    """
    with ledger.actions.trying(Action(by, "retry", run_id, reason)) as action:
        run = ledger.run(run_id)
        action = replace(action, jobs=(run.job,))
        repeat = repeat_of(ledger, run, whole=whole)
        request = replace(repeat.request, run_id=new_id(run))
        changes = changes_of(repeat, request)
        admitted = ledger.admit_requests(repeat.spec, [request], replace(action, changes=changes))[
            0
        ]
        if admitted.placement is Placement.REPEATED:
            raise Conflict(f"{run_id} is being run again: {admitted.blocked_by}")
        return Repeated(run_id, ledger.run(admitted.run_id), repeat.is_edited)


def retry_each(
    ledger: Ledger, run_ids: Iterable[str], *, whole: bool = False, by: Actor, reason: str = ""
) -> list[Repeated]:
    """Several of them, in this order: each by itself, whatever becomes of the others."""
    repeats: list[Repeated] = []
    for run_id in run_ids:
        try:
            repeats.append(retry(ledger, run_id, whole=whole, by=by, reason=reason))
        except SupervisorError as error:
            repeats.append(Repeated(run_id, None, error=str(error)))
    return repeats


def to_repeat(ledger: Ledger, runs: Sequence[Run]) -> list[Run]:
    """Those of these runs that failed and that no other has repeated, oldest first.

    A repeat that was skipped, cancelled or replaced leaves its run to be repeated. One that failed
    is a failure itself.
    """
    left = left_of(ledger, runs)
    failed = [run for run in runs if run.state in FAILURES and run.id in left]
    return sorted(failed, key=lambda run: (run.queued_at, run.nominal_at))


def left_of(ledger: Ledger, runs: Iterable[Run | FailedRun]) -> set[str]:
    """Ids of those of these runs that no other has repeated."""
    others_of = {run.id: run.repeated_by for run in runs}
    ids = [other for others in others_of.values() for other in others]
    states = dict(ledger.read_fields(ids, "state"))
    return {
        run_id
        for run_id, others in others_of.items()
        if all(states[other] in NOT_DONE for other in others)
    }


def failures_to_repeat(
    ledger: Ledger, job: str, since: datetime | None = None, limit: int | None = None
) -> list[str]:
    """Ids of a job's failed runs that no other has repeated, oldest first.

    since: of admission; without an offset, a time of the job's zone. Raises UnknownJob and
    InvalidRequest.
    """
    spec = ledger.spec(job)
    try:
        moment = since and in_utc(since, spec.zone)
    except ValueError as error:
        raise InvalidRequest(f"since: {error}") from error
    failed = RunQuery(frozenset(FAILURES), moment, limit=MOST_FAILURES)
    runs = to_repeat(ledger, search(ledger, [spec.name], failed))
    return [run.id for run in runs[:limit]]


def repeat_of(ledger: Ledger, run: Run, *, whole: bool = False) -> Repeat:
    """How the run would be repeated. Raises as `retry` does."""
    check_is_over(run)
    spec = ledger.spec(run.job)
    if bool(spec.steps) != run.has_steps:
        now = "several steps" if spec.steps else "one task"
        raise Conflict(f"{run.job} has become a job of {now}: trigger it")
    is_edited = edited_at(ledger, run.job) > ms_of(began_at(run))
    if run.has_steps:
        request, done = request_of_steps(ledger, run, whole=whole)
        arguments: tuple[Any, Any] = (), initial_params(ledger, run)
    else:
        args, kwargs, references = arguments_of(ledger, run, spec)
        request, done = RunRequest(args=args, kwargs=kwargs, references=references), ()
        arguments = (
            spec.args if args is None else args,
            spec.kwargs if kwargs is None else kwargs,
        )
    request = replace(
        request,
        nominal_at=run.nominal_at,
        repeats=run.id,
        options=options_of(run),
        key=key_of(run, spec, arguments, is_edited=is_edited),
    )
    return Repeat(run, spec, request, done, is_edited)


def check_is_over(run: Run) -> None:
    """Raises InvalidRequest and Conflict."""
    if (step := StepId.of(run.id)) is not None:
        raise InvalidRequest(
            f"{run.id} is a part of a run: run {step.run} again, from that step on"
        )
    if run.state.is_open:
        raise Conflict(f"{run.id} has not ended: it is {run.state.words}")
    if run.state in (RunState.MISSED, RunState.EXCLUDED):
        raise InvalidRequest(f"{run.id} never became a run: see supervisor backfill")


def is_over(run: Run) -> bool:
    """Whether it is a whole run that has ended, and no range of ticks."""
    try:
        check_is_over(run)
    except (InvalidRequest, Conflict):
        return False
    return True


def new_id(run: Run) -> str:
    is_of_time = run.id.startswith(tick_id(run.job, run.nominal_at))
    return backfill_id(run.job, run.nominal_at) if is_of_time else manual_id(run.job)


def changes_of(repeat: Repeat, request: RunRequest) -> tuple[Change, ...]:
    job = repeat.run.job
    done = (Change(job, "not run again", ", ".join(repeat.done)),) if repeat.done else ()
    edited = (Change(job, "edited since", "with the arguments that it had"),)
    return Change(job, "run", request.run_id or ""), *done, *(edited if repeat.is_edited else ())


# What the run had.


def began_at(run: Run) -> datetime:
    """When its arguments were decided: when it began last, or else when it ended."""
    return run.started_at or run.finished_at or run.queued_at


def edited_at(ledger: Ledger, job: str) -> int:
    """When the job was edited last, in ms: a version is the time of its edit, or a little later."""
    origin = ledger.loaded([job]).origins.get(job)
    return origin.version if origin else 0


def arguments_of(
    ledger: Ledger, run: Run, spec: JobSpec
) -> tuple[Sequence[Any] | None, Mapping[str, Any] | None, tuple[Reference, ...]]:
    """The run's args and kwargs, None where they are the job's as it is now; and the places of
    references to secrets in what is not. Raises Conflict if they are not known any more.
    """
    args, kwargs = run.args, run.kwargs
    if args is not None and kwargs is not None:
        return args, kwargs, tuple(run.references)
    then, references = spec_of(ledger, run, spec), list(run.references)
    if args is None and not is_same(then.args, spec.args):
        args = list(then.args)
        references += places_in("args", args)
    if kwargs is None and not is_same(then.kwargs, spec.kwargs):
        kwargs = then.kwargs
        references += places_in("kwargs", kwargs)
    return args, kwargs, tuple(references)


def is_same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


def places_in(name: str, arguments: Any) -> list[Reference]:
    return [(name, *path) for path, text in texts_in(arguments) if has_references(text)]


def spec_of(ledger: Ledger, run: Run, spec: JobSpec) -> JobSpec:
    """The job as it was when the run began. Raises Conflict."""
    former = ledger.former_specs(run.job)
    then: JobSpec | None
    if run.content:  # its message was made before an edit, and came after that
        versions = (spec, *(each for _, each in former))
        then = next((s for s in versions if s and content_of_job(s) == run.content), None)
    else:
        later = [each for until, each in former if until >= began_at(run)]
        then = later[-1] if later else spec
        then = None if len(later) == FORMER_KEPT else then
    if then is None:
        what = f"{run.job} was edited so often since that the arguments of {run.id} are not known"
        raise Conflict(f"{what}: trigger it with arguments")
    return then


def options_of(run: Run) -> dict[str, Any]:
    """Those of its messages, with the headers that the app's own code gave the first of a call."""
    options = {name: value for name, value in run.options.items() if name not in OF_CALLER}
    headers = own_headers(run.message.headers) if run.message else {}
    headers |= options.get("headers", {})
    return {**options, "headers": headers} if headers else options


def key_of(
    run: Run, spec: JobSpec, arguments: tuple[Any, Mapping[str, Any]], *, is_edited: bool
) -> str:
    """The lock: the job's for these arguments. Of a run that was given another one, and of a call,
    whose key only its code can make, that one. Raises InvalidKey.
    """
    had = run.rules.lock
    if isinstance(spec, GuardedTaskSpec) and had:
        return had
    own = spec.lock_for(*arguments)
    return own if is_edited or not had else had


# Runs of several steps.


def request_of_steps(
    ledger: Ledger, run: Run, *, whole: bool
) -> tuple[RunRequest, tuple[str, ...]]:
    plan = ledger.steps.plan(run.id)
    done = {} if whole else done_in(ledger, run)
    texts = ledger.steps.params(run.id)
    params = values_of(run, texts) if done else initial_params(ledger, run)
    return RunRequest(params=params, plan=without_done(plan, done)), tuple(done)


def done_in(ledger: Ledger, run: Run) -> dict[str, str]:
    """The steps that are not run again, by name, each with the id of the step that succeeded: those
    of all stages before the first one in which a step did not succeed, and of that one itself.
    """
    records = ledger.steps.records(run.id)
    succeeded = {step.name: step.done for step in records if step.done}
    for step in records:
        if step.run and step.run.state is RunState.SUCCEEDED:
            succeeded[step.name] = step.run.id
    left = [step.priority for step in records if step.name not in succeeded]
    if not left:  # all of it has succeeded
        return {}
    return {
        step.name: succeeded[step.name]
        for step in records
        if step.name in succeeded and step.priority >= max(left)
    }


def initial_params(ledger: Ledger, run: Run) -> dict[str, Any]:
    """What the first of the steps began with. Raises UnknownRun and Conflict."""
    while run.repeats and any(step.done for step in ledger.steps.records(run.id)):
        run = ledger.run(run.repeats)
    return values_of(run, ledger.steps.began_with(run.id))


def values_of(run: Run, texts: Mapping[str, str] | None) -> dict[str, Any]:
    """Raises Conflict if some of them were dropped."""
    dropped = [name for name, text in (texts or {}).items() if text == DROPPED_PARAM]
    if texts is None or dropped:
        which = f"params {', '.join(sorted(dropped))}" if dropped else "params"
        what = f"the {which} of {run.id} were too large to be kept"
        raise Conflict(f"{what}: trigger {run.job} with params")
    return {name: json.loads(text) for name, text in texts.items()}
