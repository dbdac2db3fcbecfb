"""Jobs that start in the same second: where, how many, and what would spread them.

Schedules that several jobs have are asked once. A job with `jitter` has times of its own and adds
to no crowd, so it is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of, ticks_between
from supervisor.times import INSTANT

#: Starts that are looked at, of all schedules together.
MOST_STARTS = 60_000

#: So many jobs that start in one second are a crowd.
CROWD = 5

#: From so many jobs of one schedule on, the command line says so.
WORTH_A_NOTE = 10

#: By moment, the names of the jobs that start then, in groups that share a schedule.
Starts = Mapping[datetime, Sequence[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Crowd:
    """Jobs that start in the same second."""

    at: datetime
    """The first time at which they do."""

    times: int
    """How often all of them do."""

    jobs: Sequence[str]
    """Their names."""

    remedy: str
    """The keys that would spread them."""


def sharing(specs: Iterable[JobSpec]) -> list[list[JobSpec]]:
    """The jobs in groups that have one schedule, the largest group first."""
    groups: dict[tuple[Any, ...], list[JobSpec]] = defaultdict(list)
    for spec in specs:
        if spec.has_schedule and not spec.jitter:
            groups[spec.when].append(spec)
    return sorted(groups.values(), key=len, reverse=True)


def notes(specs: Iterable[JobSpec]) -> Iterator[str]:
    """A line for each schedule that many of these jobs have."""
    for group in sharing(specs):
        if len(group) >= WORTH_A_NOTE:
            yield (
                f"{len(group)} jobs with the schedule {group[0].schedule} start in the same second:"
                f" {remedy_for(group)} spreads them"
            )


def starts_of(specs: Iterable[JobSpec], start: datetime, end: datetime) -> tuple[Starts, bool]:
    """The starts from `start` to `end`, both included, and whether these are all.

    Where there are more than MOST_STARTS, those of schedules that most jobs have come first.
    """
    starts: dict[datetime, list[tuple[str, ...]]] = defaultdict(list)
    left = MOST_STARTS
    for group in sharing(specs):
        names = tuple(spec.name for spec in group)
        ticks = ticks_between(schedule_of(group[0]), start - INSTANT, end, left)
        for tick in ticks:
            starts[tick].append(names)
        left -= len(ticks)
        if left <= 0:
            return starts, False
    return starts, True


def starting_at(moment: datetime, specs: Iterable[JobSpec]) -> set[str]:
    """The names of the jobs among these that start at that moment."""
    starts, _ = starts_of(specs, moment, moment)
    return {name for names in starts.get(moment, ()) for name in names}


def crowds_of(starts: Starts, specs: Mapping[str, JobSpec], now: datetime) -> list[Crowd]:
    """Those to come, the largest first; the same jobs at several moments are one crowd."""
    together: dict[tuple[tuple[str, ...], ...], list[datetime]] = defaultdict(list)
    for moment, groups in starts.items():
        if moment >= now and sum(map(len, groups)) >= CROWD:
            together[tuple(groups)].append(moment)
    crowds = [
        Crowd(
            min(moments),
            len(moments),
            sorted(name for group in groups for name in group),
            remedy_for(specs[group[0]] for group in groups),
        )
        for groups, moments in together.items()
    ]
    return sorted(crowds, key=lambda crowd: (-len(crowd.jobs), crowd.at))


def remedy_for(specs: Iterable[JobSpec]) -> str:
    """`phase` is for `every` alone; `jitter` is for all."""
    are_grids = all(spec.every is not None for spec in specs)
    return "`phase` or `jitter`" if are_grids else "`jitter`"
