"""What the message of a run asks a worker for: the job's task, or that of one of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.job.references import has_references
from supervisor.job.spec import JobSpec
from supervisor.job.stages import Step, seconds
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import Reference, Run, StepId

#: Plans of runs, which never change; a process publishes for a few of them at a time.
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
    soft_time_limit: float | None
    time_limit: float | None
    max_retries: int
    retry_backoff: float
    retry_backoff_max: float
    rules: Mapping[str, Any]
    fills_up: bool = False
    references: Sequence[Reference] = ()


class Assignments:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plans: dict[str, Mapping[str, Step]] = {}

    def of(self, runs: Sequence[Run]) -> dict[str, Assignment]:
        """By run id; left out are runs whose job, or whose run of several steps, is gone.

        And those of a job that only another version of this code can read.
        """
        specs = self._ledger.some_specs({run.job for run in runs if StepId.of(run.id) is None})
        places = {run.id: place for run in runs if (place := StepId.of(run.id))}
        plans = self._plans_of({place.run for place in places.values()})
        items = self._ledger.steps.items([run.id for run in runs])
        found: dict[str, Assignment] = {}
        for run in runs:
            place, spec = places.get(run.id), specs.get(run.job)
            step = plans.get(place.run, {}).get(place.step) if place else None
            if step:
                found[run.id] = of_step(run, step, items.get(run.id, ()))
            elif spec and spec.task and not place:
                found[run.id] = of_job(run, spec, spec.task)
        return found

    def _plans_of(self, run_ids: Iterable[str]) -> Mapping[str, Mapping[str, Step]]:
        unknown = [run_id for run_id in run_ids if run_id not in self._plans]
        if len(self._plans) + len(unknown) > MOST_PLANS:
            self._plans, unknown = {}, list(run_ids)
        self._plans |= self._ledger.steps.plans(unknown)
        return self._plans


def of_job(run: Run, spec: JobSpec, task: str) -> Assignment:
    return Assignment(
        run=run,
        task=task,
        args=tuple(spec.args if run.args is None else run.args),
        kwargs=dict(spec.kwargs if run.kwargs is None else run.kwargs),
        queue=spec.routed_queue,
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
    """`item`: of a batch the one that the run is for, else nothing; it is the first argument."""
    return Assignment(
        run=run,
        task=step.task,
        args=(*item, *step.args) if run.args is None else tuple(run.args),
        kwargs=dict(step.kwargs if run.kwargs is None else run.kwargs),
        queue=step.queue,
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
    """Those that are the job's own, and no caller's."""
    return [name for name in ("args", "kwargs") if getattr(run, name) is None]
