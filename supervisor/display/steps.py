"""The steps of a run as rows of text, as one line, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from supervisor.display.reports import harmless, progress_words
from supervisor.display.shapes import run_shape
from supervisor.display.tables import Columns
from supervisor.display.words import duration, seconds_between, stamp
from supervisor.job.masks import MASK, masked
from supervisor.runs.run import Batch, Run, RunState, StepRecord

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
