"""The ticks to come: those that run, those that `exclude` takes out, and what clocks do to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from supervisor.job.spec import JobSpec
from supervisor.plan.clock_changes import Surprise, surprises
from supervisor.timing import schedule_of, ticks_after, ticks_between

#: A job may exclude almost all of its times; more than these are not listed.
MOST_EXCLUDED = 1_000


@dataclass(frozen=True, slots=True)
class Upcoming:
    """`excluded`: times the schedule would name without `exclude`, before `jitter`."""

    ticks: Sequence[datetime]
    excluded: Sequence[datetime]
    surprises: Sequence[Surprise]


def upcoming(spec: JobSpec, after: datetime, count: int) -> Upcoming:
    """The next `count` ticks after an instant, and what else the schedule says until the last."""
    ticks = list(islice(ticks_after(schedule_of(spec), after), count))
    if not ticks:
        return Upcoming((), (), ())
    return Upcoming(ticks, excluded(spec, after, ticks[-1]), surprises(spec, after, ticks[-1]))


def excluded(spec: JobSpec, after: datetime, until: datetime) -> list[datetime]:
    if not spec.exclude:
        return []
    plain = spec.model_copy(update={"jitter": None})
    everything = schedule_of(plain.model_copy(update={"exclude": ()}))
    kept = set(ticks_between(schedule_of(plain), after, until, MOST_EXCLUDED))
    named = ticks_between(everything, after, until, MOST_EXCLUDED)
    return [tick for tick in named if tick not in kept]
