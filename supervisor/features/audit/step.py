"""The audit: every tick that a job's schedule names was counted once, and has one outcome.

1. The functions count each tick that is dealt with and move the watermark past it in one step. The
   number counted between two positions of the watermark must be the number of nominal times that
   the schedule names between them. That takes no memory, however many they are.
2. Each tick that was counted is missed, excluded, skipped, finished or open: the counters of a job
   and its open runs must add up.
3. A tick that has been due for half a minute and was not dealt with is overdue: RedBeat's schedule
   has lost the job's entry, which is restored.
4. A span that was audited is closed, and the next begins where it ended. What was wrong in it
   stays counted, in supervisor_unaccounted_ticks.

A job that is removed, or has new times, is audited up to that moment first; what was wrong stays
counted. `supervisor audit` looks at removed jobs as well, as long as their records are kept.

Beat audits some of the jobs every few seconds, while no tick is due. `supervisor audit` audits all
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from supervisor.beat.turn import BeatContext, Part, Turn
from supervisor.features.audit.spans import Audited, AuditSpan, AuditSpans
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import tick_id
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.schedule import missed_before, schedule_of, ticks_between
from supervisor.times import INSTANT

AUDIT_INTERVAL = timedelta(seconds=5)
JOBS_PER_AUDIT = 250

#: So many of these are audited at a time: a few milliseconds, in which beat emits no tick.
JOBS_AT_ONCE = 10

#: To audit a few jobs takes less than this. More of them are audited only if beat has this long.
AUDIT_SECONDS = 0.02

#: A tick that has been due for this long is overdue: longer than a change of leaders.
OVERDUE_AFTER = timedelta(seconds=30)

#: Up to this many of the missing ticks are named.
NAMED = 20
MOST_COMPARED = 100_000

log = get_logger("supervisor.auditing")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What is wrong with one job."""

    job: str
    span: AuditSpan
    named: int
    """How many ticks the schedule names in the span."""

    overdue: int
    """Ticks after the span that are due and were not dealt with."""

    missing: tuple[datetime, ...]
    """Nominal times without a record in the ledger, as far back as single records go."""

    @property
    def difference(self) -> int:
        return abs(self.named - self.span.counted)

    @property
    def without_outcome(self) -> int:
        """By how many ticks and runs exceed (or fall short of) outcomes and open runs."""
        return self.span.without_outcome

    def as_fields(self) -> dict[str, Any]:
        """For logs, JSON and the ledger."""
        return {
            "job": self.job,
            "from": self.span.first_at.isoformat(),
            "to": self.span.last_at.isoformat(),
            "named": self.named,
            "counted": self.span.counted,
            "without_outcome": self.without_outcome,
            "overdue": self.overdue,
            "missing": [at.isoformat() for at in self.missing],
        }


class Auditor:
    """Beat's: audits all jobs in turn, some at a time.

    `revive` gets a job whose ticks are not dealt with, and the time of the last one that was: its
    entry in RedBeat's schedule is gone, or has another time.
    """

    def __init__(self, ledger: Ledger, revive: Callable[[JobSpec, datetime], object]) -> None:
        self._ledger = ledger
        self._revive = revive
        self._taken_at: datetime | None = None
        #: The jobs that are to be audited now, and those whose turn comes later.
        self._taken: list[str] = []
        self._left: list[str] = []

    def is_due(self, turn: Turn) -> bool:
        return not turn.has_more

    def do(self, turn: Turn) -> None:
        self.audit_some(turn.poll.at, lambda: turn.seconds_left > AUDIT_SECONDS)

    def audit_some(self, now: datetime, has_time: Callable[[], bool] = lambda: True) -> None:
        """A few jobs and, while there is time, all of the JOBS_PER_AUDIT that are next in turn."""
        taken_at = self._taken_at
        # The server's clock may have been set back meanwhile.
        if taken_at is None or not taken_at <= now < taken_at + AUDIT_INTERVAL:
            self._taken_at = now
            self._take_more()
        while self._taken:
            names, self._taken = self._taken[:JOBS_AT_ONCE], self._taken[JOBS_AT_ONCE:]
            specs = self._ledger.some_specs(names, remembered=False)
            for finding in audit(self._ledger, specs.values(), now):
                note(finding)
                if finding.overdue:
                    self._revive(specs[finding.job], finding.span.last_at)
            if not has_time():
                return

    def _take_more(self) -> None:
        if self._taken:
            return
        if not self._left:
            self._left = self._ledger.scheduled_names()
        self._taken, self._left = self._left[:JOBS_PER_AUDIT], self._left[JOBS_PER_AUDIT:]


def close(ledger: Ledger, ending: Iterable[JobSpec], now: datetime) -> None:
    """Audits jobs whose schedules end now, for the last time."""
    for finding in audit(ledger, ending, now):
        note(finding)


def note(finding: AuditFinding) -> None:
    log.error("ticks unaccounted for", **finding.as_fields())


def audit(
    ledger: Ledger, specs: Iterable[JobSpec], now: datetime, removed: Collection[str] = ()
) -> list[AuditFinding]:
    """Audits the ticks of these jobs since their last audit; returns what is wrong.

    removed: those of them that are not loaded any more, and have no ticks to come.
    """
    scheduled = {spec.name: spec for spec in specs if spec.has_schedule}
    audited = [
        judged(ledger, scheduled[span.job], span, span.last_at if span.job in removed else now)
        for span in AuditSpans(ledger.functions).open(scheduled)
    ]
    AuditSpans(ledger.functions).close(
        Audited(f.span, f.difference, f.overdue, f.as_fields() if is_wrong(f) else None)
        for f in audited
    )
    return [finding for finding in audited if is_wrong(finding)]


def is_wrong(finding: AuditFinding) -> bool:
    return bool(finding.difference or finding.without_outcome or finding.overdue)


def judged(ledger: Ledger, spec: JobSpec, span: AuditSpan, now: datetime) -> AuditFinding:
    schedule = schedule_of(spec)
    named, _ = missed_before(schedule, span.first_at, span.last_at, keep=0)
    overdue, _ = missed_before(schedule, span.last_at, now - OVERDUE_AFTER, keep=0)
    missing: tuple[datetime, ...] = ()
    if named > span.counted:
        start, end = span.first_at + INSTANT, span.last_at + INSTANT
        missing = compare_records(ledger, spec, start, end, 10 * spec.history).missing[:NAMED]
    return AuditFinding(spec.name, span, named, overdue, missing)


@dataclass(frozen=True, slots=True)
class Records:
    """The single records of a job compared with its schedule, from `since` on."""

    since: datetime
    named: int
    missing: tuple[datetime, ...]
    doubled: tuple[datetime, ...]
    """Nominal times of which there is more than one record."""


def compare_records(
    ledger: Ledger, spec: JobSpec, start: datetime, end: datetime, most: int = MOST_COMPARED
) -> Records:
    """Compares the ticks from `start` to before `end`, as far back as single records are kept.

    most: how many ticks are looked at.
    """
    runs = [run for run in ledger.history(spec.name, spec.history) if is_of_a_tick(run)]
    spans = [(run.first_nominal_at or run.nominal_at, run.nominal_at) for run in runs]
    since = max(start, min((first for first, _ in spans), default=end))
    named = ticks_between(schedule_of(spec), since - INSTANT, end - INSTANT, most)
    records = {at: sum(first <= at <= last for first, last in spans) for at in named}
    return Records(
        since=since,
        named=len(named),
        missing=tuple(at for at in named if records[at] == 0),
        doubled=tuple(at for at in named if records[at] > 1),
    )


def is_of_a_tick(run: Run) -> bool:
    passed_over = run.state in (RunState.MISSED, RunState.EXCLUDED)
    return passed_over or run.id == tick_id(run.job, run.nominal_at)


def part(beat: BeatContext) -> Part:
    return Part(follow=(Auditor(beat.ledger, beat.entries.revive),))
