"""What is known about a tick, its run, and the job; nothing here is computed from the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.records import JobRecord
from supervisor.plan.clock_changes import Surprise
from supervisor.runs.run import Run, StepRecord


@dataclass(frozen=True, slots=True)
class Usual:
    """How long attempts of a job take: seconds that 95 of 100 do not exceed."""

    p95: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Away:
    """No beat led in this time."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers that are there and consume a queue, and how many processes they have.

    unknown_task: the task of the run, when none of them knows it.
    """

    workers: int
    processes: int
    unknown_task: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run, and one level deep the run that was in its way.

    admitted_at: when the ledger first heard of it; None where the job's history has lost it.
    blocker: None when nothing was in the way or its record is gone. away: of the run's time.
    crew: of a run that is queued or expired; without a queue that its job names, all workers.
    drained_at: of such a run, since when nothing begins from its queue.
    """

    run: Run
    admitted_at: datetime | None = None
    queue: str | None = None
    usual: Usual | None = None
    steps: Sequence[StepRecord] = ()
    blocker: RunFacts | None = None
    away: Away | None = None
    crew: Crew | None = None
    drained_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Calendar:
    """What the job's schedule says, as it is loaded now, of one instant.

    excluded: it would be a tick without `exclude`. surprise: what a clock change did to it.
    """

    is_tick: bool
    before: datetime | None
    after: datetime | None
    excluded: bool = False
    surprise: Surprise | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one question. `at` is the nominal time that was asked about; None without one.

    others: further runs for the same nominal time. open_runs: those of the job, where no time was
    asked for. oldest_at: the first nominal time that the job's history still has. grace_until:
    while the server is new, nothing begins. paused_at: since when the job is, if it is.
    """

    now: datetime
    job: JobRecord
    beat: BeatRecord
    watermark: datetime | None = None
    at: datetime | None = None
    calendar: Calendar | None = None
    run: RunFacts | None = None
    others: Sequence[Run] = ()
    open_runs: Sequence[RunFacts] = ()
    oldest_at: datetime | None = None
    grace_until: datetime | None = None
    beat_away: bool = False
    paused_at: datetime | None = None
