"""The plan: what loading the schedule files would change, and what each change leads to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.job.changes import Changes, Edit, difference, edits
from supervisor.job.durations import Durations
from supervisor.job.spec import JobSpec
from supervisor.operate.forecast import Forecast, foresee
from supervisor.schedule import schedule_of, ticks_between
from supervisor.schedule.clock_changes import ClockChange, clock_changes
from supervisor.schedule.expectations import next_ticks

#: How many of the next ticks of a job are shown.
SHOWN = 5

#: How far ahead clock changes are looked at.
AHEAD = timedelta(days=2 * 365)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """An added or changed job."""

    spec: JobSpec

    before: JobSpec | None
    """None for a job that is new, or of another version."""

    edits: tuple[Edit, ...]
    ticks_before: tuple[datetime, ...]
    ticks_after: tuple[datetime, ...]
    clock_changes: tuple[ClockChange, ...]
    durations: Durations | None
    forecast: Forecast | None


@dataclass(frozen=True, slots=True)
class Plan:
    changes: Changes

    jobs: tuple[JobPlan, ...]
    """The added and the changed ones, by name."""


def plan_of(
    loaded: Mapping[str, JobSpec],
    specs: Mapping[str, JobSpec],
    durations: Mapping[str, Durations],
    now: datetime,
    unread: Collection[str] = (),
    most: int | None = None,
) -> Plan:
    """`durations`: by job, how long runs took so far. unread: as of `difference`.

    most: of more changes only the first are planned.
    """
    changes = difference(loaded, specs, unread)
    jobs = tuple(
        job_plan(loaded.get(name), specs[name], durations.get(name), now)
        for name in changes.names(most)
        if name in specs
    )
    return Plan(changes, jobs)


def job_plan(
    before: JobSpec | None, spec: JobSpec, observed: Durations | None, now: datetime
) -> JobPlan:
    """observed: how long its runs took so far."""
    durations = observed if observed and observed.seconds else None
    return JobPlan(
        spec=spec,
        before=before,
        edits=edits(before, spec) if before else (),
        ticks_before=next_ticks(before, now, SHOWN) if before else (),
        ticks_after=next_ticks(spec, now, SHOWN),
        clock_changes=tuple(clock_changes(spec, now, now + AHEAD)),
        durations=durations,
        forecast=foresee(spec, durations, now) if durations else None,
    )


# The ticks to come: those that run, those that `exclude` removes, and what clock changes do.


#: A job may exclude almost all of its times; up to this many are listed.
MOST_EXCLUDED = 1_000


@dataclass(frozen=True, slots=True)
class Upcoming:
    ticks: Sequence[datetime]

    excluded: Sequence[datetime]
    """Times that the schedule would name without `exclude`, before `jitter`."""

    clock_changes: Sequence[ClockChange]


def upcoming(spec: JobSpec, after: datetime, count: int) -> Upcoming:
    """The next `count` ticks after an instant, and what else the schedule says until the last."""
    ticks = next_ticks(spec, after, count)
    if not ticks:
        return Upcoming((), (), ())
    return Upcoming(ticks, excluded(spec, after, ticks[-1]), clock_changes(spec, after, ticks[-1]))


def excluded(spec: JobSpec, after: datetime, until: datetime) -> list[datetime]:
    if not spec.exclude:
        return []
    plain = spec.model_copy(update={"jitter": None})
    everything = schedule_of(plain.model_copy(update={"exclude": ()}))
    kept = set(ticks_between(schedule_of(plain), after, until, MOST_EXCLUDED))
    named = ticks_between(everything, after, until, MOST_EXCLUDED)
    return [tick for tick in named if tick not in kept]
