"""What the API answers and is asked beyond the shapes of jobs and runs (operate/shapes.py)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from supervisor.job.fields import MessagePriority
from supervisor.job.policies import AfterPolicy, OverlapPolicy
from supervisor.ledger.actions import LONGEST_REASON
from supervisor.ledger.replies import Cancellation
from supervisor.ledger.requests import RunRequest
from supervisor.operate.control import LONGEST_NOTE
from supervisor.operate.shapes import Failure, Instant, Job, Run, Shape, Step
from supervisor.times import Duration


class Error(BaseModel):
    """`run`: of a trigger that was skipped. problems: of a job. version: the one that is there."""

    error: str


class WholeJob(Job):
    """One job, and what it is made of."""

    keys: dict[str, Any] = Field(
        default_factory=dict,
        description="As a schedule file has them, without defaults; *** for what is hidden. "
        "PUT takes them back: *** keeps the value, as long as the tasks and mask are the same.",
    )
    editable: bool = Field(False, description="Whether PUT and DELETE change it.")


class Check(Shape):
    """What saving a job would do; nothing is saved."""

    problems: list[str]
    warnings: list[str]
    change: Literal["added", "changed", "unchanged"] | None = Field(
        description="null where there are problems."
    )
    next_ticks: list[Instant]
    clock_changes: list[dict[str, Any]]
    overlaps: dict[str, Any] | None = Field(description="As `supervisor plan --json` has them.")
    overlaps_text: str | None


class WholeRun(Run):
    """steps: None for a job of one task. params: those of the current stage."""

    steps: list[Step] | None = None
    params: dict[str, Any] | None = None
    log_url: str | None = Field(None, description="Its lines in the log store of the team.")
    failures: list[Failure] = Field(
        default_factory=list, description="With their tracebacks, the latest last."
    )


class Queue(Shape):
    queue: str = Field(validation_alias="name")
    serial: bool = Field(
        validation_alias="is_serial", description="Its one worker runs one run at a time."
    )
    jobs: list[str]
    length: int | None = Field(description="Messages that wait in it; null where it is unknown.")
    consumers: int = Field(description="Workers that consume it.")
    drained_at: Instant | None = Field(description="Since when nothing begins from it.")


class Worker(Shape):
    worker: str
    present: bool = Field(description="False for one that disappeared without signing off.")
    last_seen_at: Instant
    started_at: Instant | None = None
    host: str | None = None
    pid: int | None = None
    queues: list[str] = Field(default_factory=list)
    processes: int | None = None


class Queues(Shape):
    queues: list[Queue]
    workers: list[Worker]
    at_work: dict[str, list[str]] = Field(description="Running runs, by the process they run in.")


class Unguarded(Shape):
    entry: str = Field(description="Its name in RedBeat's schedule.")
    next_due_at: Instant | None
    reason: str = Field(description="Why it is no job.")


class Beat(Shape):
    leader: str | None
    last_tick_at: Instant | None
    last_reload_successful: bool | None
    last_reload_at: Instant | None
    problems: list[str]


class Paused(Shape):
    job: str
    until: Instant | None


class Resumed(Shape):
    job: str
    caught_up: int


class Cancelled(Shape):
    run: str
    cancellation: Cancellation = Field(description="stopping: it is running, and asked to end.")


# Bodies of requests; unknown words are refused.


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(
        "", max_length=LONGEST_REASON, description="Why, for the record of actions."
    )


class Trigger(Request):
    """A run by hand; what is left out is as the job has it."""

    args: list[Any] | None = Field(None, description="Positional arguments of the task.")
    kwargs: dict[str, Any] | None = Field(None, description="Keyword arguments of the task.")
    params: dict[str, Any] | None = Field(None, description="What the steps begin with.")
    overlap: OverlapPolicy | None = Field(None, description="In place of the job's policy.")
    key: str | None = Field(None, description="The lock's key, in place of the job's.")
    max_wait: Duration | None = Field(None, description="How long to wait for the lock.")
    at: datetime | None = Field(
        None, description="Run then, not now; without an offset, a time of the job's zone."
    )

    after: str | None = Field(None, description="Run once this run has ended.")
    after_policy: AfterPolicy = Field(
        AfterPolicy.SUCCESS, description="How that run has to end; else this one is skipped."
    )
    priority: MessagePriority | None = Field(None, description="Of the message.")

    def as_request(self) -> RunRequest:
        """Without `at`, which the job's zone decides."""
        others = ("at", "priority", "reason")
        given = {name: value for name, value in self if name not in others}
        options = {} if self.priority is None else {"priority": self.priority}
        return RunRequest(**given, options=options)


class Pause(Request):
    note: str = Field("", max_length=LONGEST_NOTE, description="Why; the page shows it.")
    until: datetime | None = Field(
        None, description="When the job resumes; without an offset, a time of the job's zone."
    )


class Resume(Request):
    catch_up: bool = Field(
        False, description="Run the ticks of the pause, as `catchup` does after an outage."
    )


class Cancel(Request):
    """Nothing more."""
