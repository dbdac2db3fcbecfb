"""The JSON of jobs and runs: the same from the command line and over HTTP. Instants end in Z."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from supervisor.ledger.records import JobRecord
from supervisor.runs.progress import Progress
from supervisor.runs.run import Attempt, Run


def instant(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_shape(job: JobRecord) -> dict[str, Any]:
    """One job; `counters` as in supervisor.ledger.records.JobRecord."""
    return {
        "job": job.spec.name,
        "task": job.spec.work,
        "schedule": job.spec.schedule,
        "timezone": job.spec.timezone,
        "overlap": job.spec.overlap.value,
        "queue": job.spec.routed_queue,
        "description": job.spec.description,
        "state": job.state,
        "paused": job.paused,
        "paused_note": job.paused_note,
        "paused_until": instant(job.paused_until),
        "unaccounted_ticks": job.unaccounted_ticks,
        "running": job.running,
        "waiting": job.waiting,
        "consecutive_skips": job.consecutive_skips,
        "next_run_at": instant(job.next_run_at),
        "last_start_at": instant(job.last_start_at),
        "last_finish_at": instant(job.last_finish_at),
        "last_success_at": instant(job.last_success_at),
        "last_failure_at": instant(job.last_failure_at),
        "last_outcome": job.last_outcome,
        "last_run": job.last_run,
        "counters": dict(sorted(job.counters.items())),
    }


def run_shape(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "job": run.job,
        "state": run.state.value,
        "reason": run.reason,
        "blocked_by": run.blocked_by,
        "overlapped_with": run.overlapped_with,
        "error_step": run.error_step,
        "nominal_at": instant(run.nominal_at),
        "queued_at": instant(run.queued_at),
        "started_at": instant(run.started_at),
        "finished_at": instant(run.finished_at),
        "due_at": instant(run.due_at),
        "attempt": run.attempt,
        "crashes": run.crashes,
        "requeues": run.requeues,
        "fencing_token": run.fencing_token,
        "ticks": run.ticks,
        "first_nominal_at": instant(run.first_nominal_at),
        "progress": progress_shape(run.progress) if run.progress else None,
        "attempts_dropped": run.attempts_dropped,
        "attempts": [attempt_shape(attempt) for attempt in run.attempts],
    }


def progress_shape(progress: Progress) -> dict[str, Any]:
    return {
        "done": progress.done,
        "total": progress.total,
        "text": progress.text,
        "at": instant(progress.at),
    }


def attempt_shape(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "started_at": instant(attempt.started_at),
        "finished_at": instant(attempt.finished_at),
        "duration_seconds": attempt.duration_seconds,
        "worker": attempt.worker,
        "reason": attempt.reason,
    }
