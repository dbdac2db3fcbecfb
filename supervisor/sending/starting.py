"""Runs of several steps that code starts.

Such a run has all that the run of a schedule file's job has: the guard, retries, rescue, a history
under its job's name, and `supervisor show`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery import Celery, Task, current_app

from supervisor.catalog.guards import spec_without_schedule
from supervisor.errors import InvalidGuard
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.ledger.run_request import RunRequest
from supervisor.logs import get_logger
from supervisor.sending.content import as_json
from supervisor.sending.context import headers_of_context
from supervisor.sending.publisher import Publisher, publisher_of
from supervisor.sending.templates import parts_of, why_apart

log = get_logger("supervisor.calls")

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
    """Starts a run of several steps, and returns its id.

    ``start([("extract", 3), ("convert", 3), ("index", 1)], params={"tree": "docs"})``

    - `params`: the values that the first steps get, as JSON.
    - `job`: the name under which runs are counted and listed, by default the names of the steps.
      Use one name for each kind of work, because each name has its own metrics.
    - `run_id`: the id of the run. A second call with the same id has no effect while the run is in
      the history of its job.
    - `policies`: other keys of a job, such as ``overlap="queue_all", key="import:{feed}",
      max_retries=3``. Without `overlap` or `key`, runs do not wait for each other.

    Raises InvalidGuard, InvalidKey, NotConfigured for an app that is not supervised, and the
    exceptions of redis-py if the ledger is unavailable. In that case the run may have been recorded
    nevertheless; with a `run_id` it is safe to call again.
    """
    app = app or current_app._get_current_object()  # type: ignore[attr-defined]
    publisher = publisher_of(app)
    named = [as_keys(step) for step in steps]
    longer = [step for step in steps if isinstance(step, tuple | list) and len(step) > 2]
    if longer:
        whats = [f"{step!r} is more than a task and its priority: use a mapping" for step in longer]
        raise InvalidGuard(f"job {job or name_of(named)!r}", whats)
    if not policies.keys() & {"overlap", "key", "max_running"}:
        policies["overlap"] = OverlapPolicy.ALLOW.value
    job = job or name_of(named)
    spec = spec_without_schedule(f"job {job!r}", job, {"steps": named}, policies)
    spec = spec.kept_apart(publisher.ledger.keys.prefix)
    if run_id is not None and ("@" not in run_id or "~" in run_id):
        # Steps and items of a run are known by the form of their ids.
        what = f"{run_id!r} is no id for it: such as '{job}@order-17', without a '~'"
        raise InvalidGuard(f"job {spec.name!r}", [what])
    begins_with = as_json(dict(params or {}))
    ledger = publisher.ledger
    options = options_of_caller(publisher, spec)
    request = RunRequest(run_id=run_id, params=begins_with, options=options)
    if ledger.client.hexists(ledger.keys.jobs, spec.name):
        what = "a job of this name is loaded: trigger it, or choose another name"
        raise InvalidGuard(f"job {spec.name!r}", [what])
    ledger.register(spec)
    admission = ledger.admit_request(spec, request)
    publisher.publish(admission.to_publish)
    return admission.run_id


def as_keys(step: StepLike) -> dict[str, Any]:
    """The keys of the step, with a task's name in place of the task itself."""
    if isinstance(step, Mapping):
        keys = dict(step)
    else:  # what it lacks is reported with all else
        parts = step if isinstance(step, tuple | list) else (step,)
        keys = dict(zip(("task", "priority"), parts, strict=False))
    task = keys.get("task")
    return {**keys, "task": task.name} if isinstance(task, Task) else keys


def name_of(steps: Sequence[Mapping[str, Any]]) -> str:
    """``extract-convert-index``."""
    labels = (str(step.get("name") or step.get("task")) for step in steps)
    return "-".join(label.rpartition(".")[2] for label in labels)[:LONGEST_JOB]


def options_of_caller(publisher: Publisher, spec: JobSpec) -> dict[str, Any]:
    """Options for the messages of a run that is no call: the headers that code gives them here.

    All messages of the run, and of its steps, have those.
    """
    headers: dict[str, Any] = {}
    for *_, assignment in parts_of(spec):
        if why_apart(publisher.app, assignment.step.task) is None:
            continue
        # The task's own `apply_async` first, which may refuse a step that lacks arguments.
        for fills_up in dict.fromkeys((False, assignment.fills_up)):
            try:
                own = publisher.sender.own_headers_of(replace(assignment, fills_up=fills_up))
            except Exception as error:  # noqa: BLE001 - as in `with_message`
                log.info("message not made", job=spec.name, error=str(error))
            else:
                headers = {**own, **headers}
                break
    headers = {**headers, **headers_of_context()}
    return as_json({"headers": headers}) if headers else {}
