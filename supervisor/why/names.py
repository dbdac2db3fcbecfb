"""What sentences call a run, a worker, a state."""

from __future__ import annotations

from supervisor.runs.run import Run, RunState, tick_id
from supervisor.why.wall import Wall

#: In the past tense, as in "09:05 was skipped".
WENT = {
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
    RunState.TIMED_OUT: "timed out",
    RunState.CANCELLED: "was cancelled",
    RunState.REPLACED: "was replaced",
    RunState.LOST: "was lost",
    RunState.EXPIRED: "expired",
    RunState.SKIPPED: "was skipped",
    RunState.MISSED: "was missed",
    RunState.EXCLUDED: "was excluded",
}


def is_tick(run: Run) -> bool:
    return run.id == tick_id(run.job, run.nominal_at) or run.state in (
        RunState.MISSED,
        RunState.EXCLUDED,
    )


def subject(run: Run, wall: Wall) -> str:
    """At the beginning of a sentence: ``09:05``, or the id of a run that is no tick's."""
    return wall.time(run.nominal_at) if is_tick(run) else run.id


def named(run: Run, job: str, wall: Wall) -> str:
    """Within a sentence about a run of `job`: ``the run of 09:00``."""
    of = "the run" if run.job == job else f"{run.job}'s run"
    return f"{of} of {wall.time(run.nominal_at)}" if is_tick(run) else f"the run {run.id}"


def is_or_went(state: RunState) -> str:
    """``is running``, ``was skipped``"""
    return f"is {state.value}" if state.is_open else WENT[state]


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``"""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else suffix}"


def on_worker(worker: str | None) -> str:
    """Nothing for a run of several steps, which have workers of their own."""
    return f" on worker {worker}" if worker else ""
