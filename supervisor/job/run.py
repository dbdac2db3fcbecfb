"""A run: one execution of a job, its states, its rules, its record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field

from supervisor.job.reports import Progress
from supervisor.job.secrets import masked


class RunState(StrEnum):
    """One word for logs, metrics, the API and ``--json``."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    LOST = "lost"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    MISSED = "missed"
    EXCLUDED = "excluded"

    @property
    def is_open(self) -> bool:
        return self in OPEN_STATES

    @property
    def words(self) -> str:
        """The state for people: ``timed out``."""
        return self.value.replace("_", " ")


OPEN_STATES = frozenset({RunState.WAITING, RunState.QUEUED, RunState.RUNNING, RunState.RETRYING})

#: How a run that had its place can end; label ``outcome`` of
#: supervisor_runs_finished_total.
OUTCOMES = (
    RunState.SUCCEEDED,
    RunState.FAILED,
    RunState.TIMED_OUT,
    RunState.CANCELLED,
    RunState.REPLACED,
    RunState.LOST,
    RunState.EXPIRED,
)

#: Those of them that are failures of the job, or of what it runs on.
FAILURES = (RunState.FAILED, RunState.TIMED_OUT, RunState.LOST, RunState.EXPIRED)

#: Why ticks that beat could not emit were not caught up, and why others are never emitted;
#: label ``reason`` of supervisor_ticks_missed_total and supervisor_ticks_excluded_total.
MISSED_REASONS = ("catchup", "window", "edited")
EXCLUDED_REASONS = ("paused",)


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One start of a run's work on one worker."""

    number: int
    started_at: datetime
    worker: str
    finished_at: datetime | None = None
    outcome: str | None = None
    """None while it goes on."""

    reason: str | None = None

    @property
    def duration_seconds(self) -> float | None:
        if self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


#: A number of a run's rules.
Amount = Annotated[int, Field(strict=True)]


class RunRules(BaseModel):
    """What the ledger's functions need to know of a run's job, fixed when the run is admitted.

    Kept with the run, and sent with its message, as JSON with the names of the fields without
    `_ms`. What is not set is not written; what another version has added is kept as it is. The
    policies are plain words for that reason.

    `max_running`, `max_skips`, `max_duration_ms` and `min_duration_ms` of 0, and `max_wait_ms` of
    -1: no bound. A step of a run holds no lock, and has none of the rules about it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        populate_by_name=True,
        alias_generator=AliasGenerator(alias=lambda name: name.removesuffix("_ms")),
    )

    lock: str = ""
    serial: str = ""
    overlap: str = ""
    max_running: Amount = 0
    max_skips: Amount = 0
    on_max_skips: str = ""
    max_wait_ms: Amount = -1
    max_waiting: Amount = 0
    requeue_delay_ms: Amount = 0
    max_requeues: Amount = 0
    start_deadline_ms: Amount = 0
    lease_ttl_ms: Annotated[Amount, Field(ge=0)] = 0
    on_crash: str = ""
    max_crashes: Amount = 0
    history: Amount = 0
    on_lease_lost: str = ""
    stop_grace_ms: Annotated[Amount, Field(ge=0)] = 0
    ping: str = ""
    notify: str = ""
    mask: bool | tuple[str, ...] = False
    max_duration_ms: Amount = 0
    min_duration_ms: Amount = 0
    follows: bool = False
    log: str = ""

    @property
    def json_fields(self) -> dict[str, Any]:
        """The rules in the order of their names."""
        return dict(sorted(self.model_dump(mode="json", by_alias=True, exclude_unset=True).items()))


NO_RULES = RunRules()


@dataclass(frozen=True, slots=True)
class Message:
    """The message of a call, made by its caller with all of the app's own code."""

    queue: str
    """As workers consume it."""

    key: str
    """The list that the ledger pushes the text to."""

    text: str
    """With marks as in sending/recording.py."""

    content: str = ""
    """What it says, if the app's own code has changed that (job/content.py)."""

    @classmethod
    def of(cls, lines: str) -> Self:
        """Of the ledger's record."""
        queue, key, content, text = lines.split("\n", 3)
        return cls(queue, key, text, content)

    @property
    def lines(self) -> str:
        """As the ledger keeps it."""
        return "\n".join((self.queue, self.key, self.content, self.text))

    @property
    def headers(self) -> dict[str, Any]:
        plain = MARKS.sub("0", self.text)
        return dict(json.loads(plain)["headers"])


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What kept a queued run from starting."""

    at: datetime
    """The last time."""

    by: str
    """The process that was kept from it, or that refused it."""

    times: int
    """In a row."""

    text: str
    """Why, as a sentence goes on."""


#: Marks stand within texts, or for numbers.
MARKS = re.compile("\x01.")

#: Where a run's arguments are texts of a schedule file: ``args`` or ``kwargs`` as a whole, or the
#: path to a single text: ``["kwargs", "token"]``.
Reference = str | Sequence[str | int]


@dataclass(frozen=True, slots=True)
class Batch:
    """How far a batch is."""

    total: int
    ended: Mapping[str, int]
    """Its items, counted by outcome."""

    @property
    def done(self) -> int:
        return sum(self.ended.values())

    @property
    def failed(self) -> int:
        """How many items ended without success."""
        return self.done - self.ended.get(RunState.SUCCEEDED, 0)


@dataclass(frozen=True, slots=True)
class Run:
    """What the ledger knows of a run; instants are aware UTC."""

    id: str
    job: str
    state: RunState
    nominal_at: datetime
    queued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int = 0
    crashes: int = 0
    requeues: int = 0
    fencing_token: int | None = None
    reason: str | None = None
    blocked_by: str | None = None
    overlapped_with: str | None = None
    due_at: datetime | None = None
    worker: str | None = None
    sent_at: datetime | None = None
    """When a message was sent last."""

    sends: int = 0
    """How often a message was sent for the attempt that has not begun."""

    ticks: int = 1
    """Of a run that was missed or excluded: how many nominal times its record stands for."""

    first_nominal_at: datetime | None = None
    """The first of these times; the last is `nominal_at`."""

    attempts: Sequence[RunAttempt] = ()
    has_steps: bool = False
    error_step: str | None = None
    """The first step that failed."""

    foreach: str | None = None
    """The param whose items the step is fanned out over; then it is a `batch`."""

    batch: Batch | None = None
    returned_twice: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Params that several steps returned: the value of the last of these steps counts."""

    args: Sequence[Any] | None = None
    """None where they are the job's own."""

    kwargs: Mapping[str, Any] | None = None
    """Likewise."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """What a caller gave `apply_async`, or `retry`, for the message."""

    references: Sequence[Reference] = ()
    """The places in its own arguments that a schedule file wrote."""

    rules: RunRules = NO_RULES
    """Those of the job when the run was admitted."""

    progress: Progress | None = None
    duplicates: int = 0
    """How often a second tick or message of the run came and was dropped."""

    obstacle: Obstacle | None = None
    """What kept it from starting, until it begins."""

    note: str | None = None
    """Of the pause that excluded it."""

    queue: str | None = None
    """Where its message was sent last."""

    expires_at: datetime | None = None
    """When it had to have begun."""

    waits_for_others: bool = False
    """Whether it waits for runs of other jobs, or for the one that `after` names, to end."""

    after: str | None = None
    is_follower: bool = False
    """Whether it was admitted because runs of other jobs had ended, and was due no sooner."""

    message: Message | None = field(default=None, repr=False)
    """Of a call."""

    repeats: str | None = None
    """The run that it repeats."""

    repeated_by: Sequence[str] = ()
    """The runs that repeat it, oldest first."""

    content: str | None = None
    """What its job said, if that was edited before its message came."""

    @property
    def duration_fault(self) -> Literal["max_duration", "min_duration"] | None:
        """The key of the job that the duration of an ended attempt violated."""
        most, least = self.rules.max_duration_ms / 1000, self.rules.min_duration_ms / 1000
        lasted = [
            a.duration_seconds or 0.0 for a in self.attempts if a.outcome not in (None, "lost")
        ]
        if most and max(lasted, default=0.0) > most:
            return "max_duration"
        is_short = self.state is RunState.SUCCEEDED and lasted and lasted[-1] < least
        return "min_duration" if is_short else None

    def is_too_long(self, now: datetime) -> bool:
        """Whether the attempt that is running has taken longer than `max_duration`."""
        if self.state is not RunState.RUNNING or not self.started_at:
            return False
        most = self.rules.max_duration_ms
        return bool(most) and now - self.started_at > timedelta(milliseconds=most)

    @property
    def retries(self) -> int:
        """Attempts that failed and were followed by another; not those that crashed."""
        return max(0, self.attempt - self.crashes)

    @property
    def attempts_dropped(self) -> int:
        """How many there were before the first of `attempts`; the ledger keeps the last of them."""
        return self.attempts[0].number - 1 if self.attempts else 0

    def masked(self, arguments: Any) -> Any:
        """Arguments or params of the run, as they may be shown."""
        return masked(self.rules.mask, arguments)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step of a run."""

    name: str
    task: str
    priority: int
    run: Run | None
    """None as long as its stage has not begun."""

    done: str | None = None
    """The id of the step in a run that this run repeats, where it was done; it is not run again."""
