"""The plan: what loading the schedule files would change, and what comes of each change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.job.changes import Changes, Edit, difference, edits
from supervisor.job.spec import JobSpec
from supervisor.ledger.histograms import Histogram
from supervisor.plan.clock_changes import Surprise, surprises
from supervisor.plan.foresight import Durations, Foresight, durations_of, foresee
from supervisor.timing import schedule_of

#: So many of the next ticks of a job are shown.
SHOWN = 5

#: Clock changes are looked at so far ahead.
AHEAD = timedelta(days=2 * 365)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """An added or changed job; `before` is None for an added one, and for one nobody can read."""

    spec: JobSpec
    before: JobSpec | None
    edits: tuple[Edit, ...]
    ticks_before: tuple[datetime, ...]
    ticks_after: tuple[datetime, ...]
    surprises: tuple[Surprise, ...]
    durations: Durations | None
    foresight: Foresight | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`jobs`: the added and the changed ones, by name."""

    changes: Changes
    jobs: tuple[JobPlan, ...]


def plan_of(
    loaded: Mapping[str, JobSpec],
    wanted: Mapping[str, JobSpec],
    durations: Mapping[str, Histogram],
    now: datetime,
    unread: Collection[str] = (),
) -> Plan:
    """`durations`: by job, how long attempts took so far. unread: as of `difference`."""
    changes = difference(loaded, wanted, unread)
    jobs = tuple(
        job_plan(loaded.get(name), wanted[name], durations.get(name), now)
        for name in sorted((*changes.added, *changes.changed))
    )
    return Plan(changes, jobs)


def job_plan(
    before: JobSpec | None, spec: JobSpec, observed: Histogram | None, now: datetime
) -> JobPlan:
    return JobPlan(
        spec=spec,
        before=before,
        edits=edits(before, spec) if before else (),
        ticks_before=next_ticks(before, now) if before else (),
        ticks_after=next_ticks(spec, now),
        surprises=tuple(surprises(spec, now, now + AHEAD)),
        durations=durations_of(observed) if observed else None,
        foresight=foresee(spec, observed, now) if observed else None,
    )


def next_ticks(spec: JobSpec, now: datetime) -> tuple[datetime, ...]:
    schedule, found = schedule_of(spec), [now]
    while len(found) <= SHOWN and (tick := schedule.next_after(found[-1])) is not None:
        found.append(tick)
    return tuple(found[1:])
