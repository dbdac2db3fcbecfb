"""What the page shows of each job in its list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from supervisor.job.spec import JobSpec
from supervisor.ledger.glances import Trace, traces
from supervisor.ledger.records import JobRecord
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import RunState
from supervisor.ticks.expectations import interval_of, next_ticks
from supervisor.web.strip import LENGTH, NEVER_STARTED, Strip, strip_of


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the last runs took, against how far apart their ticks are. Seconds."""

    median: float | None
    longest: float | None
    interval: float | None

    @property
    def load(self) -> float | None:
        """Share of the interval that a slow run took; above 1, ticks came while it was at work."""
        if self.longest is None or not self.interval:
            return None
        return self.longest / self.interval

    @property
    def word(self) -> str:
        if self.load is None:
            return "unknown"
        return "over" if self.load > 1 else "near" if self.load > 0.8 else "within"


@dataclass(frozen=True, slots=True)
class JobRow:
    """held_back: the last of the runs shown that another was in the way of."""

    job: JobRecord
    strip: Strip
    pace: Pace
    held_back: Trace | None


def rows_of(ledger: Ledger, names: Sequence[str], now: datetime) -> list[JobRow]:
    """In the order of the names."""
    specs = ledger.some_specs(names)
    records = ledger.records_of([specs[name] for name in names if name in specs])
    found = traces(ledger, [record.spec.name for record in records], LENGTH)
    return [row_of(record, found[record.spec.name], now) for record in records]


def row_of(job: JobRecord, runs: Sequence[Trace], now: datetime) -> JobRow:
    pace = pace_of(job.spec, runs, now)
    held = (run for run in reversed(runs) if run.blocked_by and run.state is RunState.SKIPPED)
    return JobRow(job, strip_of(runs, pace.interval), pace, next(held, None))


def pace_of(spec: JobSpec, runs: Iterable[Trace], now: datetime) -> Pace:
    interval = interval_of(next_ticks(spec, now))
    lasted = [run.duration_seconds for run in runs if run.state not in NEVER_STARTED]
    known = [seconds for seconds in lasted if seconds is not None]
    return Pace(
        median(known) if known else None,
        max(known, default=None),
        interval.total_seconds() if interval else None,
    )
