"""The JSON of jobs, runs and actions, the same from the command line and over HTTP; and the bodies
of requests. Instants end in Z.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from supervisor.job import run as records
from supervisor.job.fields import MessagePriority
from supervisor.job.policies import AfterPolicy, OverlapPolicy
from supervisor.job.run import RunState
from supervisor.job.secrets import MASK, masked
from supervisor.job.templates import log_link
from supervisor.ledger.actions import LONGEST_REASON, Outcome
from supervisor.ledger.attempt import Cancellation
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.operate.repeating import MOST_REPEATS
from supervisor.times import Duration, render_milliseconds


def iso_utc(moment: datetime | None) -> str | None:
    return None if moment is None else render_milliseconds(moment)


Instant = Annotated[
    datetime,
    PlainSerializer(iso_utc, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class Shape(BaseModel):
    """Made from the attributes of a record. Every key is always present."""

    model_config = ConfigDict(
        extra="forbid", from_attributes=True, json_schema_serialization_defaults_required=True
    )

    @classmethod
    def dumped(cls, record: object) -> dict[str, Any]:
        """The record as JSON."""
        return cls.model_validate(record).model_dump(mode="json")


def within(path: str, description: str | None = None) -> Any:
    """A key whose value is an attribute of one of the record's attributes: ``origin.place``."""
    return Field(validation_alias=AliasPath(*path.split(".")), description=description)


class Progress(Shape):
    done: int | float
    total: int | float | None
    text: str
    at: Instant


class Attempt(Shape):
    attempt: int = Field(validation_alias="number")
    outcome: str | None
    started_at: Instant
    finished_at: Instant | None
    duration_seconds: float | None
    worker: str
    reason: str | None


class Obstacle(Shape):
    at: Instant
    by: str
    times: int = Field(description="How often in a row.")
    text: str


class Run(Shape):
    run: str = Field(validation_alias="id")
    job: str
    state: RunState
    reason: str | None
    blocked_by: str | None = Field(description="The run that was in the way.")
    overlapped_with: str | None
    obstacle: Obstacle | None = Field(description="What kept it from starting, until it begins.")
    error_step: str | None
    nominal_at: Instant
    queued_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    due_at: Instant | None
    waits_for_others: bool = Field(
        description="It waits for runs of the jobs that its job follows."
    )
    after: str | None = Field(description="The one run that it is to follow.")
    repeats: str | None = Field(description="The run that it repeats.")
    repeated_by: list[str] = Field(description="The runs that repeat it, oldest first.")
    attempt: int
    crashes: int
    requeues: int
    fencing_token: int | None
    ticks: int
    first_nominal_at: Instant | None
    progress: Progress | None
    duration_fault: Literal["max_duration", "min_duration"] | None = Field(
        description="The key that the duration of an attempt that has ended was against."
    )
    attempts_dropped: int = Field(description="How many there were before those in attempts.")
    attempts: list[Attempt]


class Items(Shape):
    total: int
    ended: dict[str, int] = Field(description="Items by outcome.")


class Step(Shape):
    step: str = Field(validation_alias="name")
    task: str
    priority: int
    state: RunState | None = Field(None, validation_alias=AliasPath("run", "state"))
    items: Items | None = Field(None, validation_alias=AliasPath("run", "batch"))
    run: Run | None
    done: str | None = Field(
        description="The step of an earlier run in which it was done: it is not run again."
    )


class Failure(Shape):
    """The last failed attempt of the run, or of one of its steps or items."""

    at: Instant
    attempt: int
    step: str | None
    traceback: str


class LogLine(Shape):
    at: Instant
    attempt: int
    step: str | None
    number: int
    text: str


class Job(Shape):
    job: str = within("spec.name")
    task: str = within("spec.work")
    schedule: str = within("spec.schedule")
    timezone: str = within("spec.timezone")
    overlap: OverlapPolicy = within("spec.overlap")
    after: tuple[str, ...] = within("spec.after", "The jobs that it follows.")
    queue: str | None = within("spec.routed_queue")
    description: str = within("spec.description")
    labels: dict[str, str] = within("spec.labels")
    source: str = within(
        "origin.source", "files, runtime, or whatever put it; code for a task that code guards."
    )
    version: int = within("origin.version", "Grows with each change of the job.")
    place: str = within("origin.place", "For people: its file and line, or who loaded it and when.")
    state: Literal["idle", "paused"] | RunState
    paused: bool
    paused_note: str | None
    paused_until: Instant | None
    unaccounted_ticks: int
    running: int
    waiting: int
    consecutive_skips: int
    next_run_at: Instant | None
    last_start_at: Instant | None
    last_finish_at: Instant | None
    last_success_at: Instant | None
    success_due_at: Instant | None = Field(
        description="By when a run has to have succeeded, as `due_by` says; past: overdue."
    )
    last_failure_at: Instant | None
    last_outcome: RunState | None
    last_run: str | None
    counters: Annotated[dict[str, int], AfterValidator(lambda counts: dict(sorted(counts.items())))]


class WholeJob(Job):
    """One job, and what it is made of."""

    keys: dict[str, Any] = Field(
        default_factory=dict,
        description="As a schedule file has them, without defaults; *** for what is hidden. "
        "PUT takes them back: *** keeps the value, as long as the tasks and mask are the same.",
    )
    editable: bool = Field(False, description="Whether PUT and DELETE change it.")


class WholeRun(Run):
    steps: list[Step] | None = Field(None, description="None for a job of one task.")
    params: dict[str, Any] | None = Field(None, description="Those of the current stage.")
    log_url: str | None = Field(None, description="Its lines in the log store of the team.")
    failures: list[Failure] = Field(
        default_factory=list, description="With their tracebacks, the latest last."
    )


def whole_run(ledger: Ledger, run: records.Run) -> WholeRun:
    whole = WholeRun.model_validate(run)
    if run.has_steps:
        whole.steps = [Step.model_validate(step) for step in ledger.steps.records(run.id)]
        whole.params = params_shape(run, ledger.steps.params(run.id))
    whole.log_url = log_url_of(ledger, run)
    failures = ledger.reports.failures(run.id)
    whole.failures = [Failure.model_validate(failure) for failure in failures]
    return whole


def log_url_of(ledger: Ledger, run: records.Run) -> str | None:
    spec = ledger.some_specs([run.job]).get(run.job)
    return log_link(spec.log_url, run, ledger.now()) if spec else None


def params_shape(run: records.Run, texts: Mapping[str, str]) -> dict[str, Any]:
    """The params of a run of several steps as they may be shown; `texts`: of the ledger, JSON."""
    # A step may have returned a NaN, which Python writes and reads, and JSON does not have.
    params = {name: json.loads(text, parse_constant=str) for name, text in texts.items()}
    mask = run.rules.mask
    return dict.fromkeys(params, MASK) if mask is True else masked(mask, params)


# The record of actions.


class RecordedChange(Shape):
    job: str
    key: str
    text: str = Field(description="As `supervisor plan` has it: 5m -> 10m. Secrets are masked.")


class RecordedAction(Shape):
    """An entry of the record of actions."""

    id: str
    at: Instant
    by: str = within("action.by.name")
    origin: str = within("action.by.origin", "cli, api, page, django, python or beat.")
    place: str = within("action.by.place", "A host, or an address.")
    via: str = within("action.by.via", "The system user, where the name is another.")
    verb: str = within("action.verb")
    target: str = within("action.target")
    reason: str = within("action.reason")
    outcome: Outcome
    error: str = Field(description="Why it was refused, or has failed.")
    jobs: list[str] = within("action.jobs", "Up to 1,000 that it is about.")
    changes: list[RecordedChange] = within("action.changes", "Up to 20.")
    result: str = Field(description="The first word of what the ledger's function answered.")


# What else the API answers.


class Error(BaseModel):
    """`run`: of a trigger that was skipped. problems: of a job. version: the one that is there."""

    error: str


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
    reason: str = Field(description="Why it is not a job.")


class Paused(Shape):
    job: str
    until: Instant | None


class Resumed(Shape):
    job: str
    caught_up: int


class Repeated(Shape):
    """What became of a run that was to be run again."""

    of: str
    run: Run | None
    edited: bool = Field(
        validation_alias="is_edited",
        description="The job has been edited since that run began; the new one has its arguments.",
    )
    error: str = Field(description="Why it is not run again.")


class Cancelled(Shape):
    run: str
    cancellation: Cancellation = Field(description="stopping: it is running, and asked to end.")


# Bodies of requests; unknown words are refused.


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(
        "", max_length=LONGEST_REASON, description="Reason, kept in the record of actions."
    )


class Trigger(Request):
    """A run triggered by hand; what is left out is as the job has it."""

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
        """The request without `at`, which depends on the job's zone."""
        others = ("at", "priority", "reason")
        given = {name: value for name, value in self if name not in others}
        options = {} if self.priority is None else {"priority": self.priority}
        return RunRequest(**given, options=options)


class Pause(Request):
    reason: str = Field(
        "",
        max_length=LONGEST_REASON,
        description="Why: shown with the job, and kept in the record.",
    )
    until: datetime | None = Field(
        None, description="When the job resumes; without an offset, a time of the job's zone."
    )


class Resume(Request):
    catch_up: bool = Field(
        False, description="Run the ticks of the pause, as `catchup` does after an outage."
    )


class Retry(Request):
    """A run that is to be run again."""

    whole: bool = Field(
        False, description="Of a run of several steps, from its first step, not the failed one."
    )


class RetryFailures(Request):
    """Failed runs of a job that are to be run again: those that nothing has repeated."""

    since: datetime | None = Field(
        None, description="Only runs from then on; without an offset, a time of the job's zone."
    )
    limit: int = Field(MOST_REPEATS, ge=1, le=MOST_REPEATS, description="The oldest of them.")


class Cancel(Request):
    """No other keys."""
