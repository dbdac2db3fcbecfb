"""`start`: runs several tasks in order, from code.

A started run has all that the run of a schedule file's job has: the guard, retries, rescue, a
history under its job's name, and `supervisor show`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery, Task, current_app

from supervisor.errors import InvalidGuard
from supervisor.files.job_checks import started_spec
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import GuardedTaskSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Placement
from supervisor.ledger.requests import RunRequest
from supervisor.sending.publisher import as_json, publisher_of
from supervisor.sending.tracing import options_with_trace

LONGEST_JOB = 100

#: A step: (task or its name, priority), or a mapping of the keys of a schedule file's step.
StepLike = tuple[Any, ...] | Mapping[str, Any]


def start(
    steps: Sequence[StepLike],
    params: Mapping[str, Any] | None = None,
    *,
    job: str | None = None,
    run_id: str | None = None,
    app: Celery | None = None,
    **policies: Any,
) -> str:
    """Starts a run of these steps and gives its id.

    ``start([("extract", 3), ("convert", 3), ("index", 1)], params={"tree": "docs"})``

    params: what the steps begin with; JSON. job: the name under which runs are counted and listed,
    by default the names of the steps; use one name for one kind of work, since each has metrics.
    run_id: a second call with the same id changes nothing, as long as the run is in its job's
    history. policies: other keys of a schedule file's job, such as ``overlap="queue_all",
    key="import:{feed}", max_retries=3``; without `overlap` or `key`, runs do not wait for each
    other.

    Raises InvalidGuard, InvalidKey, NotConfigured for an app that is not supervised, and what
    redis-py raises when the ledger is unavailable: then the run may have been recorded all the
    same. With a `run_id` it is safe to start it again.
    """
    app = app or current_app._get_current_object()  # type: ignore[attr-defined]
    publisher = publisher_of(app)
    named = [with_task_name(step) for step in steps]
    if not policies.keys() & {"overlap", "key", "max_running"}:
        policies["overlap"] = OverlapPolicy.ALLOW.value
    spec = started_spec(job or name_of(named), named, policies)
    spec = spec.kept_apart(publisher.ledger.keys.prefix)
    if run_id is not None and ("@" not in run_id or "/" in run_id):
        # Steps and items of a run are known by the form of their ids.
        what = f"{run_id!r} is no id for it: such as 'documents@order-17', without a '/'"
        raise InvalidGuard(f"job {spec.name!r}", [what])
    begins_with = as_json(dict(params or {}))
    request = RunRequest(run_id=run_id, params=begins_with, options=options_with_trace())
    register(publisher.ledger, spec)
    admission = publisher.ledger.admit_request(spec, request)
    if admission.placement is Placement.START:
        publisher.publish([admission.run_id])
    return admission.run_id


def with_task_name(step: StepLike) -> StepLike:
    """The step with the task's name in place of a task itself."""
    if isinstance(step, Mapping):
        return {**step, "task": task_name(step["task"])} if "task" in step else step
    return (task_name(step[0]), *step[1:])


def task_name(task: Any) -> Any:
    return task.name if isinstance(task, Task) else task


def name_of(steps: Sequence[StepLike]) -> str:
    """``extract-convert-index``."""
    labels = [
        step.get("name") or step.get("task") if isinstance(step, Mapping) else step[0]
        for step in steps
    ]
    return "-".join(str(label).rpartition(".")[2] for label in labels)[:LONGEST_JOB]


def register(ledger: Ledger, spec: GuardedTaskSpec) -> None:
    """Makes the job known to the ledger. Raises InvalidGuard if a schedule file has its name."""
    if ledger.client.hexists(ledger.keys.jobs, spec.name):
        what = "a schedule file has a job of this name: trigger it, or choose another name"
        raise InvalidGuard(f"job {spec.name!r}", [what])
    ledger.register(spec)
