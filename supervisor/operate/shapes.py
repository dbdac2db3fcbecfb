"""The JSON of jobs and runs: the same from the command line and over HTTP. Instants end in Z."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
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
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import RunState
from supervisor.job.secrets import MASK, masked
from supervisor.ledger.records import JobRecord
from supervisor.operate.table_layout import Columns
from supervisor.operate.words import duration, seconds_between, stamp


def instant(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Instant = Annotated[
    datetime,
    PlainSerializer(instant, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class Shape(BaseModel):
    """Read from the attributes of a record. Every key is always there."""

    model_config = ConfigDict(
        extra="forbid", from_attributes=True, json_schema_serialization_defaults_required=True
    )


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


class Run(Shape):
    run: str = Field(validation_alias="id")
    job: str
    state: RunState
    reason: str | None
    blocked_by: str | None = Field(description="The run that was in the way.")
    overlapped_with: str | None
    error_step: str | None
    nominal_at: Instant
    queued_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    due_at: Instant | None
    is_held: bool = Field(description="It waits for runs of the jobs that its job follows.")
    after: str | None = Field(description="The one run that it is to follow.")
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
    job: str = Field(validation_alias=AliasPath("spec", "name"))
    task: str = Field(validation_alias=AliasPath("spec", "work"))
    schedule: str = Field(validation_alias=AliasPath("spec", "schedule"))
    timezone: str = Field(validation_alias=AliasPath("spec", "timezone"))
    overlap: OverlapPolicy = Field(validation_alias=AliasPath("spec", "overlap"))
    after: tuple[str, ...] = Field(
        validation_alias=AliasPath("spec", "after"), description="The jobs that it follows."
    )
    queue: str | None = Field(validation_alias=AliasPath("spec", "routed_queue"))
    description: str = Field(validation_alias=AliasPath("spec", "description"))
    labels: dict[str, str] = Field(validation_alias=AliasPath("spec", "labels"))
    source: str = Field(
        validation_alias=AliasPath("origin", "source"),
        description="files, runtime, or whatever put it; code for a task that code guards.",
    )
    version: int = Field(
        validation_alias=AliasPath("origin", "version"),
        description="Grows with each change of the job.",
    )
    place: str = Field(
        validation_alias=AliasPath("origin", "place"),
        description="For people: its file and line, or who put it when.",
    )
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
    counters: Annotated[dict[str, int], AfterValidator(lambda found: dict(sorted(found.items())))]


def job_shape(job: JobRecord) -> dict[str, Any]:
    """`counters` as in supervisor.ledger.records.JobRecord."""
    return Job.model_validate(job).model_dump(mode="json")


def run_shape(run: records.Run) -> dict[str, Any]:
    return Run.model_validate(run).model_dump(mode="json")


def step_shape(step: records.StepRecord) -> dict[str, Any]:
    return Step.model_validate(step).model_dump(mode="json")


def failure_shape(failure: records.Failure) -> dict[str, Any]:
    return Failure.model_validate(failure).model_dump(mode="json")


def line_shape(line: records.LogLine) -> dict[str, Any]:
    return LogLine.model_validate(line).model_dump(mode="json")


# Progress and log lines as text for terminals.


#: Sequences that colour text or move the cursor.
CONTROL_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")


class LogText:
    """Lines of one log as text; remembers their numbers, to say how many were dropped."""

    def __init__(self) -> None:
        self._last: dict[tuple[str | None, int], int] = {}

    def of(self, lines: Iterable[records.LogLine]) -> Iterator[str]:
        for line in lines:
            if dropped := self.dropped_before(line):
                yield dropped
            yield f"{stamp(line.at)}  {label_of(line)}{harmless(line.text)}"

    def dropped_before(self, line: records.LogLine) -> str:
        """To be asked of each line, in their order."""
        if line.number == 0:  # written by the ledger itself
            return ""
        place = (line.step, line.attempt)
        dropped = line.number - self._last.get(place, 0) - 1
        self._last[place] = line.number
        return f"({dropped:,} {'line' if dropped == 1 else 'lines'} dropped)" if dropped > 0 else ""


def failure_lines(failure: records.Failure) -> Iterator[str]:
    """The traceback as text, below whose it is."""
    yield f"{stamp(failure.at)}  {label_of(failure, always=True)}failed"
    yield from (f"  {harmless(line)}" for line in failure.traceback.splitlines())


def label_of(line: records.LogLine | records.Failure, *, always: bool = False) -> str:
    """``load#3, attempt 2: ``, or nothing for a first attempt of a run without steps."""
    attempt = f"attempt {line.attempt}" if line.attempt > 1 or always else None
    label = ", ".join(filter(None, (line.step, attempt)))
    return f"{label}: " if label else ""


def progress_words(progress: records.Progress | None) -> str:
    """``40/100 (40%) loading``."""
    if progress is None:
        return ""
    done = f"{progress.done:,}" + ("" if progress.total is None else f"/{progress.total:,}")
    share = "" if progress.share is None else f"({progress.share:.0%})"
    return " ".join(filter(None, (done, share, harmless(progress.text))))


def harmless(text: str) -> str:
    """On one line, and without control characters of a terminal."""
    if text.isprintable():
        return text
    text = CONTROL_SEQUENCE.sub("", text)
    return "".join(c if c.isprintable() else " " for c in text)


# The steps of a run as rows of text, and as one line.


STEP_COLUMNS = Columns.named(
    "step, priority, task, attempt, state, started, duration, reason",
    folds="reason",
    drops="started, task, priority, duration, attempt",
)

LONGEST_PARAM = 60


def step_row(step: records.StepRecord, now: datetime) -> Sequence[str]:
    run = step.run
    if run is None:
        return (step.name, str(step.priority), step.task, "", "", "", "", "")
    started, ended = run.started_at, run.finished_at
    progress = items_words(run.batch) or progress_words(run.progress)
    return (
        step.name,
        str(step.priority),
        step.task,
        str(run.attempt or ""),
        run.state.value,
        stamp(started),
        duration(seconds_between(started, ended or now)),
        harmless(", ".join(filter(None, (progress, run.reason)))),
    )


def items_words(batch: records.Batch | None) -> str:
    """``120/600 items (20%), 2 failed``."""
    if batch is None:
        return ""
    share = f" ({batch.done / batch.total:.0%})" if batch.total else ""
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return f"{batch.done:,}/{batch.total:,} items{share}{failed}"


def share_of(steps: Sequence[records.StepRecord]) -> float:
    """The progress of the run from 0 to 1, as if all steps took the same time."""
    return sum(map(share_of_step, steps)) / max(1, len(steps))


def share_of_step(step: records.StepRecord) -> float:
    if step.run is None:
        return 0.0
    if not step.run.state.is_open:
        return 1.0
    if step.run.batch:
        return step.run.batch.done / max(1, step.run.batch.total)
    return (step.run.progress and step.run.progress.share) or 0.0


def running_steps_words(steps: Sequence[records.StepRecord]) -> str:
    """``words 120/600 items (20%), 2 failed; scan 40/100 (40%)``: the running steps."""
    return "; ".join(
        f"{step.name} {items_words(step.run.batch) or progress_words(step.run.progress)}".rstrip()
        for step in steps
        if step.run and step.run.state in (RunState.RUNNING, RunState.RETRYING)
    )


def params_shape(run: records.Run, texts: Mapping[str, str]) -> dict[str, Any]:
    """The params of a run of several steps as they may be shown; `texts`: of the ledger, JSON."""
    # A step may have returned a NaN, which Python writes and reads, and JSON does not have.
    params = {name: json.loads(text, parse_constant=str) for name, text in texts.items()}
    mask = run.rules.mask
    return dict.fromkeys(params, MASK) if mask is True else masked(mask, params)


def param_words(params: Mapping[str, Any]) -> str:
    """``files=[312 values], tree='docs'``: on one line."""
    return harmless(", ".join(f"{name}={value_words(params[name])}" for name in sorted(params)))


def value_words(value: Any) -> str:
    text = repr(value)
    if len(text) <= LONGEST_PARAM:
        return text
    match value:
        case list():
            return f"[{len(value):,} values]"
        case dict():
            return f"{{{len(value):,} names}}"
        case _:
            return f"{text[: LONGEST_PARAM - 3]}..."
