"""The audit: every tick that a job's schedule names was counted once, and has one outcome.

1. The scripts count each tick that is dealt with and move the watermark past it in one step. The
   number counted between two positions of the watermark must be the number of nominal times that
   the schedule, asked anew, names between them. That takes no memory, however many they are.
2. Each tick that was counted is missed, excluded, skipped, finished or open: the counters of a job
   and its open runs must add up.
3. A stretch that was audited is closed, and the next begins where it ended. What was wrong in it
   stays counted, in supervisor_unaccounted_ticks.

Beat audits a part of the jobs every few seconds; `supervisor audit` all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

import structlog

from supervisor.ledger.runs import Ledger
from supervisor.ledger.stretches import Stretch
from supervisor.run import Run
from supervisor.spec import JobSpec
from supervisor.timing import missed_before, schedule_of, ticks_between

AUDIT_INTERVAL = timedelta(seconds=5)
JOBS_PER_AUDIT = 500

#: Of the ticks that are missing, so many are named.
NAMED = 20

log = structlog.get_logger("supervisor.auditing")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one job: `counted` ticks where the schedule names `named`, in a stretch.

    missing: nominal times of which the ledger has no record, as far as it goes back one by one.
    unsettled: ticks and runs more (or fewer) than outcomes and open runs.
    """

    job: str
    stretch: Stretch
    named: int
    missing: tuple[datetime, ...]

    @property
    def difference(self) -> int:
        return abs(self.named - self.stretch.counted)

    @property
    def unsettled(self) -> int:
        return self.stretch.unsettled


class Auditor:
    """Beat's: goes round all jobs, some at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next_at: datetime | None = None
        self._left: list[str] = []

    def audit_some(self, now: datetime) -> None:
        if self._next_at and now < self._next_at:
            return
        self._next_at = now + AUDIT_INTERVAL
        if not self._left:
            self._left = self._ledger.scheduled_names()
        names, self._left = self._left[:JOBS_PER_AUDIT], self._left[JOBS_PER_AUDIT:]
        for finding in audit(self._ledger, self._ledger.some_specs(names).values()):
            note(finding)


def note(finding: Finding) -> None:
    log.error(
        "ticks unaccounted for",
        job=finding.job,
        named=finding.named,
        counted=finding.stretch.counted,
        unsettled=finding.unsettled,
        missing=[at.isoformat() for at in finding.missing],
    )


def audit(ledger: Ledger, specs: Iterable[JobSpec]) -> list[Finding]:
    """Audits the ticks of these jobs since their last audit; gives what is wrong."""
    scheduled = {spec.name: spec for spec in specs if spec.has_schedule}
    findings = []
    closed: list[tuple[Stretch, int]] = []
    for stretch in ledger.open_stretches(scheduled):
        spec = scheduled[stretch.job]
        named, _ = missed_before(schedule_of(spec), stretch.first_at, stretch.last_at, keep=0)
        wrong = abs(named - stretch.counted)
        if wrong or stretch.unsettled:
            missing = missing_ticks(ledger, spec, stretch) if named > stretch.counted else ()
            findings.append(Finding(spec.name, stretch, named, missing))
        if stretch.first_at < stretch.last_at:
            closed.append((stretch, wrong))
    ledger.close_stretches(closed)
    return findings


def missing_ticks(ledger: Ledger, spec: JobSpec, stretch: Stretch) -> tuple[datetime, ...]:
    """Nominal times without a record, among those for which records are kept one by one."""
    runs = ledger.history(spec.name, spec.history)
    if not runs:
        return ()
    since = max(stretch.first_at, min(covers(run)[0] for run in runs) - timedelta(milliseconds=1))
    named = ticks_between(schedule_of(spec), since, stretch.last_at, 10 * spec.history)
    unknown = (at for at in named if not any(is_covered(at, run) for run in runs))
    return tuple(islice(unknown, NAMED))


def covers(run: Run) -> tuple[datetime, datetime]:
    return run.first_nominal_at or run.nominal_at, run.nominal_at


def is_covered(at: datetime, run: Run) -> bool:
    first, last = covers(run)
    return first <= at <= last
