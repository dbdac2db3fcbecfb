"""The JSON of jobs and runs: the same from the command line and over HTTP. Instants end in Z."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from supervisor.job.run import Attempt, Batch, LogLine, Progress, Run, RunState, StepRecord
from supervisor.job.secrets import MASK, masked
from supervisor.ledger.records import JobRecord
from supervisor.operate.table_layout import Columns
from supervisor.operate.words import duration, seconds_between, stamp


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


# Progress and log lines as text for terminals, and as JSON.


#: What colours text or moves the cursor on a terminal.
CONTROL_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")


class LogText:
    """Lines of one log as text; remembers their numbers, to tell how many are not there."""

    def __init__(self) -> None:
        self._last: dict[tuple[str | None, int], int] = {}

    def of(self, lines: Iterable[LogLine]) -> Iterator[str]:
        for line in lines:
            place = (line.step, line.attempt)
            if line.number == 0:  # the ledger's own word
                yield f"{stamp(line.at)}  {label_of(line)}{harmless(line.text)}"
                continue
            dropped = line.number - self._last.get(place, 0) - 1
            self._last[place] = line.number
            if dropped > 0:
                yield f"({dropped:,} {'line' if dropped == 1 else 'lines'} dropped)"
            yield f"{stamp(line.at)}  {label_of(line)}{harmless(line.text)}"


def label_of(line: LogLine) -> str:
    """``load#3, attempt 2: ``, or nothing for a first attempt of a run without steps."""
    attempt = f"attempt {line.attempt}" if line.attempt > 1 else None
    label = ", ".join(filter(None, (line.step, attempt)))
    return f"{label}: " if label else ""


def progress_words(progress: Progress | None) -> str:
    """``40/100 (40%) loading``."""
    if progress is None:
        return ""
    done = f"{progress.done:,}" + ("" if progress.total is None else f"/{progress.total:,}")
    share = "" if progress.share is None else f"({progress.share:.0%})"
    return " ".join(filter(None, (done, share, harmless(progress.text))))


def harmless(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    if text.isprintable():
        return text
    text = CONTROL_SEQUENCE.sub("", text)
    return "".join(c if c.isprintable() else " " for c in text)


def line_shape(line: LogLine) -> dict[str, Any]:
    return {
        "at": instant(line.at),
        "attempt": line.attempt,
        "step": line.step,
        "number": line.number,
        "text": line.text,
    }


# The steps of a run as rows of text, as one line, and as JSON.


STEP_COLUMNS = Columns(
    ("step", "priority", "task", "attempt", "state", "started", "duration", "reason"),
    folds=("reason",),
    drops=("started", "task", "priority", "duration", "attempt"),
)

LONGEST_PARAM = 60


def step_row(step: StepRecord, now: datetime) -> Sequence[str]:
    run = step.run
    if run is None:
        return (step.name, str(step.priority), step.task, "", "", "", "", "")
    started, ended = run.started_at, run.finished_at
    lasted = duration(seconds_between(started, ended or now)) if started else ""
    said = items_words(run.batch) or progress_words(run.progress)
    return (
        *(step.name, str(step.priority), step.task, str(run.attempt or "")),
        *(run.state.value, stamp(started) if started else "", lasted),
        harmless(", ".join(filter(None, (said, run.reason)))),
    )


def items_words(batch: Batch | None) -> str:
    """``120/600 items (20%), 2 failed``."""
    if batch is None:
        return ""
    share = f" ({batch.done / batch.total:.0%})" if batch.total else ""
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return f"{batch.done:,}/{batch.total:,} items{share}{failed}"


def share_of(steps: Sequence[StepRecord]) -> float:
    """How far the run is, from 0 to 1, as if all steps took the same time."""
    return sum(map(share_of_step, steps)) / max(1, len(steps))


def share_of_step(step: StepRecord) -> float:
    if step.run is None:
        return 0.0
    if not step.run.state.is_open:
        return 1.0
    if step.run.batch:
        return step.run.batch.done / max(1, step.run.batch.total)
    return (step.run.progress and step.run.progress.share) or 0.0


def at_work_words(steps: Sequence[StepRecord]) -> str:
    """``words 120/600 items (20%), 2 failed; scan 40/100 (40%)``: of the steps that are at it."""
    return "; ".join(
        f"{step.name} {items_words(step.run.batch) or progress_words(step.run.progress)}".rstrip()
        for step in steps
        if step.run and step.run.state in (RunState.RUNNING, RunState.RETRYING)
    )


def params_shape(run: Run, texts: Mapping[str, str]) -> dict[str, Any]:
    """The params of a run of several steps as they may be shown; `texts`: of the ledger, JSON."""
    # A step may have returned a NaN, which Python writes and reads, and JSON does not have.
    params = {name: json.loads(text, parse_constant=str) for name, text in texts.items()}
    mask = run.rules.get("mask")
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


def step_shape(step: StepRecord) -> dict[str, Any]:
    run = step.run
    shape = run_shape(run) if run else None
    batch = run.batch if run else None
    return {
        "step": step.name,
        "task": step.task,
        "priority": step.priority,
        "state": run.state.value if run else None,
        "items": batch and {"total": batch.total, "ended": dict(batch.ended)},
        "run": shape,
    }
