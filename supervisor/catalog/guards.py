"""The `guard` of a task and of a call: all that is wrong with it is reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from supervisor.catalog.faults import in_words
from supervisor.catalog.job_checks import check_job
from supervisor.errors import InvalidGuard
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import GuardedTaskSpec
from supervisor.job.when import When
from supervisor.times import Duration

#: Keys of a job that mean nothing without a schedule, or that the task itself says.
NOT_IN_A_GUARD = (
    *When.model_fields,
    "task",
    "steps",
    "params",
    "args",
    "kwargs",
    "after",
    "after_match",
    "after_policy",
    "run_at_start",
    "catchup",
    "catchup_window",
    "paused",
    "due_by",
)


def guarded_task_spec(task: str, guard: Any) -> GuardedTaskSpec:
    """The job that a guarded task is. Raises InvalidGuard."""
    where = f"the guard of task {task!r}"
    if not isinstance(guard, Mapping):
        raise InvalidGuard(where, [f"{guard!r} is neither True nor a mapping of a job's keys"])
    return spec_without_schedule(where, task, {"task": task}, guard)


def spec_without_schedule(
    where: str, name: str, work: Mapping[str, Any], policies: Mapping[str, Any]
) -> GuardedTaskSpec:
    """The job that code makes of a task or of steps. work: these, as keys of a job.

    Raises InvalidGuard with all that is wrong.
    """
    refused = [f"{key!r} is not for calls from code" for key in NOT_IN_A_GUARD if key in policies]
    own = {key: value for key, value in policies.items() if key not in NOT_IN_A_GUARD}
    # What a template needs is known when the task is called.
    checked = {key: value for key, value in own.items() if key != "key"}
    _, faults = check_job(name, {**checked, **work, "every": 60}, {}, None)
    problems = refused + [fault.text for fault in faults]
    if problems:
        raise InvalidGuard(where, problems)
    try:
        return GuardedTaskSpec(**{**own, **work, "name": name})
    except ValidationError as error:
        raise InvalidGuard(where, in_words(error, GuardedTaskSpec)) from error


class GuardedCall(BaseModel):
    """The guard of one call; None for what the task's own guard has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Annotated[str, Field(min_length=1)] | None = None
    overlap: OverlapPolicy | None = None
    max_wait: Duration | None = None

    @classmethod
    def of(cls, header: Any, task: str) -> Self:
        """Raises InvalidGuard."""
        where = f"the guard of a call of {task!r}"
        if header is None or header is True:
            return cls()
        if not isinstance(header, Mapping):
            raise InvalidGuard(where, [f"{header!r} is neither True nor a mapping"])
        try:
            return cls.model_validate(dict(header))
        except ValidationError as error:
            raise InvalidGuard(where, in_words(error, cls)) from error
