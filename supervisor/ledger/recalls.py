"""What became of an admission whose reply was lost: read from the record of its run."""

from __future__ import annotations

from datetime import timedelta

from supervisor.errors import UnknownRun
from supervisor.job.overlap import OverlapPolicy
from supervisor.ledger.readings import Readings
from supervisor.ledger.replies import Admission, Placement
from supervisor.runs.run import Run, RunState

#: The server may have dated an admission a little before it was asked for.
MARGIN = timedelta(seconds=1)


def recalled(readings: Readings, again: Admission, seconds: float) -> Admission:
    """`again`: what the repeated call was told; seconds: since the first was made.

    A duplicate of that first call gets the place that its run has; one of an earlier call stays
    what it is.
    """
    if again.placement is not Placement.DUPLICATE:
        return again
    admitted_at = readings.admitted_at(again.job, again.run_id)
    asked_at = readings.now() - timedelta(seconds=seconds)
    if admitted_at is None or admitted_at < asked_at - MARGIN:
        return again
    try:
        run = readings.run(again.run_id)
    except UnknownRun:
        return again
    return Admission(run.id, run.job, placement_of(run), run.reason, run.blocked_by)


def placement_of(run: Run) -> Placement:
    """In the words of an admission, where a run is now."""
    if run.state is RunState.SKIPPED:
        return Placement.SKIP
    if run.state is not RunState.WAITING:
        return Placement.START
    if run.due_at is not None:
        return Placement.REQUEUE if run.requeues else Placement.DELAY
    # A run that would be skipped waits when too many in a row have been.
    policy = run.rules["overlap"]
    if policy == OverlapPolicy.SKIP:
        policy = run.rules["on_max_skips"]
    return Placement.REPLACE if policy == OverlapPolicy.REPLACE else Placement.WAIT
