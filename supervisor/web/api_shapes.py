"""The answers of the API: what its document says of them, and tests hold it to."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import RunState
from supervisor.ledger.replies import Cancellation
from supervisor.ledger.requests import RunRequest
from supervisor.operate.control import LONGEST_NOTE
from supervisor.times import Duration

Word = Literal["idle", "paused"] | RunState


class Answer(BaseModel):
    """Every key is always there; instants are UTC and end in Z."""

    model_config = ConfigDict(extra="forbid")


class Error(BaseModel):
    """`run`: of a trigger that was skipped."""

    error: str


class Progress(Answer):
    done: float
    total: float | None
    text: str
    at: datetime


class Attempt(Answer):
    attempt: int
    outcome: str | None
    started_at: datetime
    finished_at: datetime | None
    duration_seconds: float | None
    worker: str
    reason: str | None


class Run(Answer):
    run: str
    job: str
    state: RunState
    reason: str | None
    blocked_by: str | None = Field(description="The run that was in the way.")
    overlapped_with: str | None
    error_step: str | None
    nominal_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    attempt: int
    crashes: int
    requeues: int
    fencing_token: int | None
    ticks: int
    first_nominal_at: datetime | None
    progress: Progress | None
    attempts_dropped: int = Field(description="How many there were before those in attempts.")
    attempts: list[Attempt]


class Items(Answer):
    total: int
    ended: dict[str, int] = Field(description="Items by outcome.")


class Step(Answer):
    step: str
    task: str
    priority: int
    state: RunState | None
    items: Items | None
    run: Run | None


class WholeRun(Run):
    """steps: None for a job of one task. params: what the present stage was handed."""

    steps: list[Step] | None
    params: dict[str, Any] | None


class LogLine(Answer):
    at: datetime
    attempt: int
    step: str | None
    number: int
    text: str


class Job(Answer):
    job: str
    task: str
    schedule: str
    timezone: str
    overlap: OverlapPolicy
    queue: str | None
    description: str
    state: Word
    paused: bool
    paused_note: str | None
    paused_until: datetime | None
    unaccounted_ticks: int
    running: int
    waiting: int
    consecutive_skips: int
    next_run_at: datetime | None
    last_start_at: datetime | None
    last_finish_at: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_outcome: RunState | None
    last_run: str | None
    counters: dict[str, int]


class Queue(Answer):
    queue: str
    serial: bool = Field(description="Worked one run at a time, by a worker of its own.")
    jobs: list[str]
    length: int | None = Field(description="Messages that wait in it, as far as one can tell.")
    consumers: int = Field(description="Workers that consume it.")
    drained_at: datetime | None = Field(description="Since when nothing begins from it.")


class Worker(Answer):
    worker: str
    present: bool = Field(description="False for one that has gone without a word.")
    last_seen_at: datetime
    started_at: datetime | None
    host: str | None
    pid: int | None
    queues: list[str]
    processes: int | None


class Queues(Answer):
    queues: list[Queue]
    workers: list[Worker]
    at_work: dict[str, list[str]] = Field(description="Runs by the process that works on them.")


class Beat(Answer):
    leader: str | None
    last_tick_at: datetime | None
    last_reload_successful: bool | None
    last_reload_at: datetime | None
    problems: list[str]


class Paused(Answer):
    job: str
    until: datetime | None


class Resumed(Answer):
    job: str
    caught_up: int


class Cancelled(Answer):
    run: str
    cancellation: Cancellation = Field(description="stopping: at work, and asked to end.")


# What the API's actions may be told; unknown words are refused.


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Trigger(Request):
    """A run by hand; what is left out is as the job has it."""

    args: list[Any] | None = Field(None, description="Positional arguments of the task.")
    kwargs: dict[str, Any] | None = Field(None, description="Keyword arguments of the task.")
    params: dict[str, Any] | None = Field(None, description="What the steps begin with.")
    overlap: OverlapPolicy | None = Field(None, description="In place of the job's policy.")
    key: str | None = Field(None, description="The lock's key, in place of the job's.")
    max_wait: Duration | None = Field(None, description="How long to wait for the lock.")

    def as_request(self) -> RunRequest:
        return RunRequest(
            args=self.args,
            kwargs=self.kwargs,
            params=self.params,
            overlap=self.overlap,
            key=self.key,
            max_wait=self.max_wait,
        )


class Pause(Request):
    note: str = Field("", max_length=LONGEST_NOTE, description="Why, for those who wonder.")
    until: datetime | None = Field(
        None, description="When the job resumes by itself; without an offset a time of its zone."
    )


class Resume(Request):
    catch_up: bool = Field(
        False, description="Run the ticks of the pause, as `catchup` does after an outage."
    )


class Cancel(Request):
    """Nothing to say."""
