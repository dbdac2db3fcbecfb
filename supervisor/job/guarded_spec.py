"""A task that code guards, as a job."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from supervisor.job.faults import conflict
from supervisor.job.spec import JobSpec
from supervisor.job.when import KINDS


class GuardedTaskSpec(JobSpec):
    """A task that its own code puts under the guard: a job that no schedule file names."""

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if any(getattr(self, kind) is not None for kind in KINDS):
            raise conflict("a guarded task has no schedule", *KINDS)
        return self
