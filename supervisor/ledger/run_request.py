"""What is asked of a run: by people and code that want one now, and by a retry of one.

What is not given is as the job has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from supervisor.job.policies import AfterPolicy, OverlapPolicy
from supervisor.job.run import Message, Reference, RunRules
from supervisor.job.spec import JobSpec
from supervisor.job.templates import checked_key


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that is asked for by hand or by code; None means "as the job has it"."""

    run_id: str | None = None
    nominal_at: datetime | None = None
    """The time that the run is for; now without it."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None
    """Of a run of several steps, over those of the job."""

    key: str | None = None
    """The lock's key itself, not a template."""

    overlap: OverlapPolicy | None = None
    max_wait: timedelta | None = None
    """How long the run may wait for the lock."""

    waits_for_ever: bool = False
    """It waits as long as it takes, whatever the job says."""

    max_waiting: int | None = None
    expires: timedelta | None = None
    """The time from now in which it has to begin; it bounds the waiting as well."""

    delay: timedelta = timedelta()
    """The time from now before which it is not to start."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of Celery's `apply_async`, for the message."""

    is_awaited: bool = False
    """Code may wait for the result: Celery is informed when there is none."""

    is_of_code: bool = False
    """The ledger is to know the job as code has it, from now on."""

    message: Message | None = None
    """Of a call."""

    after: str | None = None
    """Id of a run that has to end first, as `after_policy` says."""

    after_policy: AfterPolicy = AfterPolicy.SUCCESS
    repeats: str = ""
    """Id of an ended run that this one repeats."""

    references: Sequence[Reference] = ()
    """Where its arguments are words of a schedule file, to be resolved."""

    plan: Mapping[str, Any] | None = None
    """Of the steps, with `params` as they begin with, in place of those of the job."""

    @property
    def changes(self) -> dict[str, Any]:
        """What this request says in place of the job's own rules."""
        rules = {
            "overlap": self.overlap,
            "max_wait": self.max_wait,
            "max_waiting": self.max_waiting,
        }
        changes: dict[str, Any] = {k: value for k, value in rules.items() if value is not None}
        if self.waits_for_ever:
            changes["max_wait"] = None
        return changes

    def rules_for(self, spec: JobSpec) -> RunRules:
        """The job's rules with those of this request over them. Raises InvalidKey."""
        return self._ruled(spec).rules(self.lock_for(spec))

    def rules_text(self, spec: JobSpec) -> str:
        """The same as JSON, without the lock."""
        return self._ruled(spec).rules_text

    def _ruled(self, spec: JobSpec) -> JobSpec:
        changes = self.changes
        return spec.model_copy(update=changes) if changes else spec

    def lock_for(self, spec: JobSpec) -> str:
        if self.key is not None:
            return checked_key(self.key)
        if spec.steps:
            return spec.lock_for((), {**spec.params, **(self.params or {})})
        args = spec.args if self.args is None else self.args
        kwargs = spec.kwargs if self.kwargs is None else self.kwargs
        return spec.lock_for(args, kwargs)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """What the caller of a run, or a retry, gave it; None for the job's own."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of Celery's `apply_async`."""

    references: Sequence[Reference] = ()
    """Where these arguments are words of a schedule file, to be resolved."""

    is_awaited: bool = False
    """As in a RunRequest."""

    code: str = ""
    """The job's spec (JSON), where code has it."""

    @property
    def texts(self) -> dict[str, str]:
        """As the functions read it. Raises TypeError for what JSON refuses."""
        are_all_the_jobs = self.args is None and self.kwargs is None
        references = None if are_all_the_jobs else [*self.references]
        return argument_texts(self.args, self.kwargs, self.options, references)


#: All arguments as the job has them.
JOB_ARGUMENTS = CallArguments()


def argument_texts(
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    references: Sequence[Reference] | None,
) -> dict[str, str]:
    """Those that are given, as JSON; a job has the others itself."""
    given = {
        "args": args,
        "kwargs": kwargs,
        "options": dict(options) or None,
        "references": None if references is None else [*references],
    }
    return {name: json.dumps(value) for name, value in given.items() if value is not None}
