"""StepSpec: a step of a job as its schedule file describes it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from supervisor.job.fields import Count, Name, check_needed, conflict
from supervisor.job.policies import OnItemFailure
from supervisor.times import AtLeastASecond, Duration

#: A step's name is a part of its run's id, and the last part of its task's name by default.
LONGEST_NAME = 100

Percentage = Annotated[str, Field(pattern=r"^(100|[0-9]{1,2})%$")]


class StepSpec(BaseModel):
    """A task of a job, its place in the order, and what it says other than the job."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: Annotated[str, Field(min_length=1, max_length=255)]
    """Name of the Celery task, as the worker registers it."""
    priority: Annotated[int, Field(ge=0, le=1_000, strict=True)]
    """Steps of equal priority run in parallel; those of the next lower one when all are done."""
    name: Name | None = None
    """What the step is called; by default the last part of its task's name."""
    args: tuple[Any, ...] = ()
    """Positional arguments; the item of a batch comes before them."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments; parameters that are not given here are filled from the run's params."""
    queue: Name | None = None
    """Queue of this step; by default the job's."""
    max_retries: Count | None = None
    """How often a failed attempt of this step is tried again; by default as the job says."""
    retry_backoff: Duration | None = None
    """Wait before the first retry; by default as the job says."""
    soft_time_limit: AtLeastASecond | None = None
    """After this the task sees SoftTimeLimitExceeded; by default as the job says."""
    time_limit: AtLeastASecond | None = None
    """After this the task's process is killed; by default as the job says."""
    foreach: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Name of the param that holds a list: the task runs once for each of its items."""
    max_parallel: Annotated[Count, Field(ge=1)] | None = None
    """How many items may be queued or running at once; by default up to 1,000."""
    on_item_failure: OnItemFailure = OnItemFailure.FAIL
    """What a batch does with an item that failed after its retries."""
    max_failed: Count | Percentage | None = None
    """With `on_item_failure: threshold`: the most that may fail, a number or such as 5%."""

    @model_validator(mode="after")
    def _batch_keys_together(self) -> Self:
        if self.foreach is None:
            check_needed(self, "foreach", "max_parallel", "max_failed", "on_item_failure")
        if (self.on_item_failure is OnItemFailure.THRESHOLD) != (self.max_failed is not None):
            text = "'on_item_failure: threshold' and 'max_failed' need each other"
            raise conflict(text, "max_failed", "on_item_failure")
        return self

    @property
    def label(self) -> str:
        """The step's name; unique in its job."""
        return self.name or self.task.rpartition(".")[2][:LONGEST_NAME]
