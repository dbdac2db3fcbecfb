"""Runs that began and ended: succeeded, failed, timed out, lost, cancelled, replaced."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.display.reports import harmless
from supervisor.runs.run import Run, RunState
from supervisor.why.attempts import (
    duplicates,
    earlier_attempts,
    lateness,
    overlap,
    steps_of,
)
from supervisor.why.facts import Facts, RunFacts
from supervisor.why.names import WENT, on_worker, subject
from supervisor.why.wall import Wall, lasted


def ended(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    yield f"{subject(run, wall)} {WENT[run.state]}{end_words(run, wall)}{reason_words(run)}"
    yield from tries_left(found, facts)
    yield from steps_of(found, wall)
    yield from earlier_attempts(run.attempts, wall)
    yield from lateness(found, wall)
    yield from overlap(run)
    yield from duplicates(run)


def end_words(run: Run, wall: Wall) -> str:
    """`` at 09:06:10, after 1m9s on worker w3``"""
    if run.finished_at is None:
        return ""
    if not run.attempts:
        return f" at {wall.time(run.finished_at)}, before it began"
    last = run.attempts[-1]
    return (
        f" at {wall.time(run.finished_at)}, after "
        f"{lasted(last.started_at, last.finished_at or run.finished_at)}{on_worker(last.worker)}"
    )


def reason_words(run: Run) -> str:
    return f": {harmless(run.reason)}" if run.reason else ""


def tries_left(found: RunFacts, facts: Facts) -> Iterator[str]:
    """Why it was not tried again."""
    run, spec = found.run, facts.job.spec
    if run.state is RunState.LOST:
        if run.rules.get("on_crash") == "fail":
            yield "it was not run again: `on_crash: fail`"
        else:
            bound = f"(`max_crashes: {run.rules.get('max_crashes')}`)"
            yield f"it was not run again: its workers died {times(run.crashes)} {bound}"
    if run.state in (RunState.FAILED, RunState.TIMED_OUT) and run.attempts and not run.has_steps:
        tried = run.attempts_dropped + len(run.attempts) - run.crashes
        yield f"it was tried {times(tried)}; `max_retries` is {spec.max_retries}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
