"""What the message of a queued run says: from its job's spec, or from the plan of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.guard.delivery import RETRIES
from supervisor.job.run import Reference, Run, RunRules, StepId
from supervisor.job.secrets import has_references
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Step, seconds
from supervisor.ledger.ledger import Ledger

#: Up to this many plans of runs are kept: they never change, and a process publishes for a few.
MOST_PLANS = 200


@dataclass(frozen=True, slots=True)
class Assignment:
    """Limits and waits in seconds. `fills_up`: parameters without argument come from params.

    references: what of the arguments a schedule file wrote, with references in it.
    """

    run: Run
    task: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    queue: str | None
    priority: int | None
    soft_time_limit: float | None
    time_limit: float | None
    max_retries: int
    retry_backoff: float
    retry_backoff_max: float
    rules: RunRules
    fills_up: bool = False
    references: Sequence[Reference] = ()


class Assignments:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plans: dict[str, Mapping[str, Step]] = {}

    def of(self, runs: Sequence[Run]) -> dict[str, Assignment]:
        """By run id, without those whose job, or whose run of several steps, is gone.

        Nor those of a job that only another version of this code can read.
        """
        specs = self._ledger.some_specs({run.job for run in runs if StepId.of(run.id) is None})
        step_ids = {run.id: step_id for run in runs if (step_id := StepId.of(run.id))}
        plans = self._plans_of({step_id.run for step_id in step_ids.values()})
        items = self._ledger.steps.items([run.id for run in runs])
        found: dict[str, Assignment] = {}
        for run in runs:
            step_id, spec = step_ids.get(run.id), specs.get(run.job)
            step = plans.get(step_id.run, {}).get(step_id.step) if step_id else None
            if step:
                found[run.id] = of_step(run, step, items.get(run.id, ()))
            elif spec and spec.task and not step_id:
                found[run.id] = of_job(run, spec, spec.task)
        return found

    def _plans_of(self, run_ids: Iterable[str]) -> Mapping[str, Mapping[str, Step]]:
        plans = self._plans  # of this thread, whatever another one puts in their place
        unknown = [run_id for run_id in run_ids if run_id not in plans]
        if len(plans) + len(unknown) > MOST_PLANS:
            plans, unknown = {}, list(run_ids)
        if unknown:
            plans = self._plans = {**plans, **self._ledger.steps.plans(unknown)}
        return plans


def of_job(run: Run, spec: JobSpec, task: str) -> Assignment:
    return Assignment(
        run=run,
        task=task,
        args=tuple(spec.args if run.args is None else run.args),
        kwargs=dict(spec.kwargs if run.kwargs is None else run.kwargs),
        queue=spec.routed_queue,
        priority=spec.priority,
        soft_time_limit=seconds(spec.soft_time_limit),
        time_limit=seconds(spec.time_limit),
        max_retries=spec.max_retries,
        retry_backoff=spec.retry_backoff.total_seconds(),
        retry_backoff_max=spec.retry_backoff_max.total_seconds(),
        rules=run.rules,
        references=[
            *(name for name in written(run) if has_references(getattr(spec, name))),
            *run.references,
        ],
    )


def of_step(run: Run, step: Step, item: Sequence[Any]) -> Assignment:
    """`item`: of a batch the one that the run is for, its first argument; else empty."""
    return Assignment(
        run=run,
        task=step.task,
        args=(*item, *step.args) if run.args is None else tuple(run.args),
        kwargs=dict(step.kwargs if run.kwargs is None else run.kwargs),
        queue=step.queue,
        priority=step.message_priority,
        soft_time_limit=step.soft_time_limit,
        time_limit=step.time_limit,
        max_retries=step.max_retries,
        retry_backoff=step.retry_backoff,
        retry_backoff_max=step.retry_backoff_max,
        rules=step.rules,
        fills_up=True,
        references=[*(written(run) if step.has_references else ()), *run.references],
    )


def written(run: Run) -> list[str]:
    """Names of the arguments that are the job's own, and not a caller's."""
    return [name for name in ("args", "kwargs") if getattr(run, name) is None]


def message_header(assignment: Assignment, queue: str) -> dict[str, Any]:
    """What a run's message says beside Celery's own headers."""
    run = assignment.run
    references = {"references": list(assignment.references)} if assignment.references else {}
    return {
        "run": run.id,
        "job": run.job,
        "queue": queue,
        "nominal_at": run.nominal_at.isoformat(),
        "rules": assignment.rules.json_fields,
        RETRIES: run.retries,
        "max_retries": assignment.max_retries,
        "retry_backoff": assignment.retry_backoff,
        "retry_backoff_max": assignment.retry_backoff_max,
        **references,
    }
