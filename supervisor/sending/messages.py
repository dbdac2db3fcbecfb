"""What the message of a run says: the run, and its task with queue, limits and retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from supervisor.guard.delivery import NOMINAL, RETRIES, own_headers
from supervisor.job.run import Reference, Run, RunState
from supervisor.job.run_ids import StepId
from supervisor.job.secrets import has_references
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Step, seconds
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.times import ms_of


@dataclass(frozen=True, slots=True)
class Assignment:
    run: Run

    step: Step
    """Of the run's plan, or what a job of one task says. Where a caller gave other arguments, the
    step's are not those of the run."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    fills_up: bool
    """Whether parameters without an argument come from params."""

    references: Sequence[Reference]
    """Which of the arguments a schedule file wrote, with references to secrets in them."""

    context: Mapping[str, Any] = field(default_factory=dict)
    """The headers that code beside Celery's gave the run's first message in its caller."""


def assignments(ledger: Ledger, runs: Sequence[Run]) -> dict[str, Assignment]:
    """Assignments by run id, without runs whose job, or whose run of several steps, is gone.

    Jobs that only another version of this code can read are left out too.
    """
    specs = ledger.some_specs({run.job for run in runs if StepId.of(run.id) is None})
    step_ids = {run.id: step_id for run in runs if (step_id := StepId.of(run.id))}
    plans = ledger.steps.plans(sorted({step_id.run for step_id in step_ids.values()}))
    options = ledger.steps.options(sorted({step_id.run for step_id in step_ids.values()}))
    items = ledger.steps.items([run.id for run in runs])
    by_run: dict[str, Assignment] = {}
    for run in runs:
        step_id, spec = step_ids.get(run.id), specs.get(run.job)
        if step_id and (step := plans.get(step_id.run, {}).get(step_id.step)):
            assignment = of_step(run, step, items.get(run.id, ()))
            by_run[run.id] = replace(assignment, context=context_of(run, options.get(step_id.run)))
        elif spec and spec.task and not step_id:
            assignment = of_job(run, spec, spec.task)
            by_run[run.id] = replace(assignment, context=context_of(run, run.options))
    return by_run


def context_of(run: Run, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """options: of the run, or of the run whose step it is."""
    first = run.message.headers if run.message else {}
    return {**own_headers(first), **(options or {}).get("headers", {})}


def of_job(run: Run, spec: JobSpec, task: str) -> Assignment:
    step = Step(
        name=spec.name,
        task=task,
        priority=0,
        queue=spec.routed_queue,
        message_priority=spec.priority,
        soft_time_limit=seconds(spec.soft_time_limit),
        time_limit=seconds(spec.time_limit),
        max_retries=spec.max_retries,
        retry_backoff=spec.retry_backoff.total_seconds(),
        retry_backoff_max=spec.retry_backoff_max.total_seconds(),
        rules=run.rules,
    )
    args = tuple(spec.args if run.args is None else run.args)
    kwargs = dict(spec.kwargs if run.kwargs is None else run.kwargs)
    own = [name for name in written(run) if has_references(getattr(spec, name))]
    return Assignment(run, step, args, kwargs, False, [*own, *run.references])


def of_step(run: Run, step: Step, item: Sequence[Any]) -> Assignment:
    """item: the item of a batch that the run is for, as its first argument; else empty."""
    args = (*item, *step.args) if run.args is None else tuple(run.args)
    kwargs = dict(step.kwargs if run.kwargs is None else run.kwargs)
    own = written(run) if step.has_references else []
    return Assignment(run, step, args, kwargs, True, [*own, *run.references])


def run_of(spec: JobSpec, request: RunRequest, nominal_at: datetime) -> Run:
    """The run of a call before it is admitted. Raises InvalidKey."""
    return Run(
        request.run_id or "",
        spec.name,
        RunState.QUEUED,
        nominal_at,
        nominal_at,
        args=request.args,
        kwargs=request.kwargs,
        options=request.options,
        rules=request.rules_for(spec),
    )


def written(run: Run) -> list[str]:
    """Names of the arguments that are the job's own, not a caller's."""
    return [name for name in ("args", "kwargs") if getattr(run, name) is None]


def message_header(assignment: Assignment, queue: str) -> dict[str, Any]:
    """What a run's message says beside Celery's own headers."""
    run, step = assignment.run, assignment.step
    references = {"references": list(assignment.references)} if assignment.references else {}
    return {
        "run": run.id,
        "job": run.job,
        "queue": queue,
        NOMINAL: ms_of(run.nominal_at),
        "rules": step.rules.json_fields,
        RETRIES: run.retries,
        "max_retries": step.max_retries,
        "retry_backoff": step.retry_backoff,
        "retry_backoff_max": step.retry_backoff_max,
        **references,
    }
