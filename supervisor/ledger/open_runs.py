"""What a job's record needs of its runs that have not ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.replies import instant, to_instant
from supervisor.runs.run import RunState


@dataclass(frozen=True, slots=True)
class OpenRun:
    """`meant_for`: when it was to start."""

    job: str
    state: str
    meant_for: datetime
    started_at: datetime | None


#: The fields of a run's hash that an OpenRun is made of.
OPEN_RUN_FIELDS = ("job", "state", "nominal", "queued", "started", "kind")


def open_run_from(values: Sequence[str | None]) -> OpenRun | None:
    """From the values of OPEN_RUN_FIELDS; None for a run that is gone."""
    job, state, nominal, queued, started, kind = values
    if job is None or state is None or nominal is None:
        return None
    # A backfill is for a time long ago, and not late for that.
    meant_for = nominal if kind != "manual" else max(int(nominal), int(queued or 0))
    return OpenRun(job, state, instant(meant_for), to_instant(started))


def oldest_queued_at(runs: Iterable[OpenRun]) -> datetime | None:
    """For when the oldest was meant that is queued or waits, and has not begun before."""
    waits = (RunState.QUEUED, RunState.WAITING)
    unbegun = (run.meant_for for run in runs if run.state in waits and run.started_at is None)
    return min(unbegun, default=None)


def oldest_running_at(runs: Iterable[OpenRun]) -> datetime | None:
    begun = (run.started_at for run in runs if run.state == RunState.RUNNING and run.started_at)
    return min(begun, default=None)
