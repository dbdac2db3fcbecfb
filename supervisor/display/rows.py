"""Jobs and runs as rows of text, for tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from supervisor.display.tables import Columns
from supervisor.display.words import age, ahead, duration, pause_words, seconds_between, stamp
from supervisor.ledger.records import JobRecord
from supervisor.runs.run import Run, RunState

JOB_COLUMNS = Columns(
    (
        *("job", "schedule", "state", "next run", "last run", "outcome"),
        *("started", "succeeded", "failed", "skipped", "requeued"),
    ),
    folds=("schedule", "state"),
    drops=(
        *("requeued", "started", "succeeded", "skipped", "last run"),
        *("failed", "schedule", "outcome", "next run"),
    ),
)
RUN_COLUMNS = Columns(
    ("run", "attempt", "state", "started", "duration", "reason"),
    folds=("reason",),
    drops=("started", "duration", "attempt"),
)


def job_row(job: JobRecord, now: datetime) -> Sequence[str]:
    zone = "" if job.spec.timezone == "UTC" else f" {job.spec.timezone}"
    return (
        job.spec.name,
        job.spec.schedule + zone,
        state_words(job),
        ahead(job.next_run_at, now),
        age(job.last_start_at, now),
        job.last_outcome or "",
        str(job.counters.get("started", 0)),
        *(str(job.counters.get(f"finished:{word}", 0)) for word in ("succeeded", "failed")),
        str(job.skipped),
        str(job.counters.get("requeued", 0)),
    )


def state_words(job: JobRecord) -> str:
    """The state; of a paused job also why and until when."""
    told = pause_words(job.paused_note, job.paused_until) if job.paused else ""
    return job.state + (f" ({'' if job.state == 'paused' else 'paused '}{told})" if told else "")


def run_rows(run: Run, now: datetime, how_far: str = "") -> Iterator[Sequence[str]]:
    """A row for each attempt, newest first; one for a run that is not at work or never began."""
    at_work = run.state is RunState.RUNNING
    ended = bool(run.attempts) and not run.state.is_open
    if not at_work and not ended:
        yield (run.id, "", run.state.value, span_of(run), "", why(run))
    for attempt in reversed(run.attempts):
        last = attempt is run.attempts[-1]
        state = run.state.value if last and (at_work or ended) else str(attempt.outcome)
        lasted = seconds_between(attempt.started_at, attempt.finished_at or now)
        yield (
            run.id,
            str(attempt.number),
            state,
            stamp(attempt.started_at),
            duration(lasted),
            (", ".join(filter(None, (how_far, why(run)))) if last else attempt.reason) or "",
        )
    if dropped := dropped_words(run):
        yield (run.id, "", "", "", "", dropped)


def dropped_words(run: Run) -> str:
    """Of attempts that are not remembered one by one."""
    if not run.attempts_dropped:
        return ""
    return f"{run.attempts_dropped} earlier attempts, of which nothing else is kept"


def why(run: Run) -> str:
    """The reason, the run that stood in the way, and when it goes on."""
    parts = [run.reason or ""]
    if run.blocked_by and not run.attempts:
        parts.append(f"blocked by {run.blocked_by}")
    if run.overlapped_with:
        parts.append(f"overlapped with {run.overlapped_with}")
    if run.due_at and run.state.is_open:
        parts.append(f"due {stamp(run.due_at)}")
    return ", ".join(part for part in parts if part)


def span_of(run: Run) -> str:
    if run.ticks == 1:
        return ""
    return f"{run.ticks} ticks from {stamp(run.first_nominal_at)}"
