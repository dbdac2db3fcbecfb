"""What an edit will do, in the log of the beat that takes it over: the same looks as `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import structlog

from supervisor.job.spec import JobSpec
from supervisor.ledger.runs import Ledger
from supervisor.plan.clock_changes import surprises
from supervisor.plan.foresight import foresee
from supervisor.plan.planning import AHEAD, next_ticks

#: Each costs milliseconds; whoever edits more at once asks `supervisor plan`.
MOST_JOBS = 20
MOST_SURPRISES = 2

log = structlog.get_logger("supervisor.reloading")


def foretell(ledger: Ledger, specs: Sequence[JobSpec], now: datetime) -> None:
    """Logs the next tick of each job, the clock changes that touch it, and overlaps foreseen."""
    for record in ledger.records_of(list(specs[:MOST_JOBS])):
        spec = record.spec
        log.info(
            "job loaded",
            job=spec.name,
            schedule=spec.schedule,
            next_run_at=[tick.isoformat() for tick in next_ticks(spec, now)[:1]],
        )
        for surprise in surprises(spec, now, now + AHEAD)[:MOST_SURPRISES]:
            log.warning(
                "clock change ahead",
                job=spec.name,
                kind="gap" if surprise.is_gap else "fold",
                times=[time.isoformat() for time in surprise.times[:1]],
                runs_at=[time.isoformat() for time in surprise.runs_at[:1]],
            )
        foresight = foresee(spec, record.durations, now)
        if foresight is not None:
            log.warning(
                "overlaps foreseen",
                job=spec.name,
                skips_a_day=round(foresight.skips, 1),
                waits_a_day=round(foresight.waits, 1),
                safe_interval=foresight.safe_interval and str(foresight.safe_interval),
            )
